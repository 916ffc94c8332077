// Encode with runs along tokens: a block owns whole runs of a page times a group of channels.
//
// Each thread keeps a strip of eight tokens of VEC channels in registers, so every value is read once. Strips are
// combined into chunks and chunks into runs through shared memory; one thread per chunk and channel does the
// divisions. No shuffles, so any number of strips in a chunk goes.
#pragma once
#include "pages.cuh"

#define THREADS (LANES * STRIPS)
#define WIDTH (LANES * VEC)                // channels of the block
#define CHUNKS (STRIPS * STRIP / CHUNK)    // of a channel of the block
#define CHUNK_STRIPS (CHUNK / STRIP)
#define RUN_CHUNKS (RANGE / CHUNK)

// Smallest and largest value of every channel of a strip.
__device__ __forceinline__ void strip_range(const Pack<VALUE_BYTES> (&value)[STRIP], float (&lo)[VEC], float (&hi)[VEC]) {
#if PAIRED
    Pack<VALUE_BYTES> low = value[0], high = value[0];
#pragma unroll
    for (int i = 1; i < STRIP; ++i)
#pragma unroll
        for (int word = 0; word < Pack<VALUE_BYTES>::COUNT; ++word) {
            low.word[word] = pair_of_lesser(low.word[word], value[i].word[word]);
            high.word[word] = pair_of_greater(high.word[word], value[i].word[word]);
        }
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
        lo[k] = widen<VALUE_TYPE>(element(low, k));
        hi[k] = widen<VALUE_TYPE>(element(high, k));
    }
#else
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
        lo[k] = hi[k] = widen<VALUE_TYPE>(element(value[0], k));
#pragma unroll
        for (int i = 1; i < STRIP; ++i) {
            const float x = widen<VALUE_TYPE>(element(value[i], k));
            lo[k] = fminf(lo[k], x);
            hi[k] = fmaxf(hi[k], x);
        }
    }
#endif
}

__device__ __forceinline__ void encode(const Plan& plan) {
    __shared__ EncodeTables tables;
    // Smallest and largest value of strips; later, where strips are not chunks, centre and reciprocal of chunks.
    __shared__ float strip_lo[STRIPS][WIDTH], strip_hi[STRIPS][WIDTH];
#if CHUNK_STRIPS > 1
    __shared__ float chunk_lo[CHUNKS][WIDTH], chunk_hi[CHUNKS][WIDTH];
    float(&chunk_mu)[STRIPS][WIDTH] = strip_lo;
    float(&chunk_reciprocal)[STRIPS][WIDTH] = strip_hi;
#else
    __shared__ float chunk_mu[CHUNKS][WIDTH], chunk_reciprocal[CHUNKS][WIDTH];
    float(&chunk_lo)[STRIPS][WIDTH] = strip_lo;
    float(&chunk_hi)[STRIPS][WIDTH] = strip_hi;
#endif
#if MEAN_CENTER
    __shared__ float chunk_sum[CHUNKS][WIDTH];
#endif
    const Tile where = this_tile(plan, plan.pages);
    const PageView view = page_view(plan, where.outer, where.page);
    const i64 first_strip = where.tile * STRIPS;
    const u32 thread = threadIdx.x, row = thread / LANES, first = thread % LANES * VEC;
    const i64 channel = where.group * WIDTH + first, strip = first_strip + row;
    const bool inside = channel < plan.channels;
    u8* column = plan.values + outer_offset(plan, where.outer) + channel_offset(plan, channel);

    if (where.outer == 0 && where.tile == 0 && where.group == 0) store_gaps(plan, view, thread, THREADS);
    if (where.tile == 0 && inside) store_sinks(plan, view, column, channel, row, STRIPS);
    if (first_strip * STRIP >= view.coded) return;  // the whole block

    const int valid = inside ? valid_tokens(view.coded, strip) : 0;
    Pack<VALUE_BYTES> value[STRIP];
    load_strip(plan, view, column, strip, valid, value);
    load_tables(tables, plan.tables, thread, THREADS);
    float lo[VEC], hi[VEC];
    strip_range(value, lo, hi);
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
        strip_lo[row][first + k] = valid ? lo[k] : INFINITY_F;
        strip_hi[row][first + k] = valid ? hi[k] : -INFINITY_F;
    }
#if MEAN_CENTER
    // Sums run token by token: the strips of a chunk take turns.
    for (u32 turn = 0; turn < CHUNK_STRIPS; ++turn) {
        if (row % CHUNK_STRIPS == turn) {
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                float& shared = chunk_sum[row / CHUNK_STRIPS][first + k];
                float sum = turn ? shared : 0.0f;
#pragma unroll
                for (int i = 0; i < STRIP; ++i)
                    if (i < valid) sum = __fadd_rn(sum, widen<VALUE_TYPE>(element(value[i], k)));
                shared = sum;
            }
        }
        __syncthreads();
    }
#else
    __syncthreads();
#endif
#if CHUNK_STRIPS > 1
    for (u32 k = thread; k < CHUNKS * WIDTH; k += THREADS) {
        const u32 chunk = k / WIDTH, c = k % WIDTH;
        float lo = strip_lo[chunk * CHUNK_STRIPS][c], hi = strip_hi[chunk * CHUNK_STRIPS][c];
#pragma unroll 8
        for (int s = 1; s < CHUNK_STRIPS; ++s) {
            lo = fminf(lo, strip_lo[chunk * CHUNK_STRIPS + s][c]);
            hi = fmaxf(hi, strip_hi[chunk * CHUNK_STRIPS + s][c]);
        }
        chunk_lo[chunk][c] = lo;
        chunk_hi[chunk][c] = hi;
    }
    __syncthreads();
#endif
    for (u32 k = thread; k < CHUNKS * WIDTH; k += THREADS) {
        const u32 chunk = k / WIDTH, c = k % WIDTH, run = chunk / RUN_CHUNKS;
        const i64 column_number = where.group * WIDTH + c, token = first_strip * STRIP + (i64)chunk * CHUNK;
        float mu = 0.0f, inverse = 0.0f;
        if (column_number < plan.channels && token < view.coded) {
            float lo = chunk_lo[run * RUN_CHUNKS][c], hi = chunk_hi[run * RUN_CHUNKS][c];
#pragma unroll 8
            for (u32 other = 1; other < RUN_CHUNKS; ++other) {
                lo = fminf(lo, chunk_lo[run * RUN_CHUNKS + other][c]);
                hi = fmaxf(hi, chunk_hi[run * RUN_CHUNKS + other][c]);
            }
            lo = __fadd_rn(lo, 0.0f);  // -0 becomes +0: the order of comparisons must not show
            hi = __fadd_rn(hi, 0.0f);
            if (chunk % RUN_CHUNKS == 0) {
                const i64 runs = ceil_div(view.coded, RANGE), number = token / RANGE;
                store_range(plan, view, (view.outer * runs + number) * plan.channels + column_number, lo, hi);
            }
            Scale stored = {0.0f, 0.0f};
            if (METADATA) {
                float mean = 0.0f;
#if MEAN_CENTER
                const i64 left = view.coded - token;
                mean = __fdiv_rn(chunk_sum[chunk][c], (float)(int)(left < CHUNK ? left : CHUNK));
#endif
                stored = quantize_scale(lo, hi, __fadd_rn(chunk_lo[chunk][c], 0.0f), __fadd_rn(chunk_hi[chunk][c], 0.0f), mean);
                const i64 chunks = ceil_div(view.coded, CHUNK), number = token / CHUNK;
                store_scale(plan, view, (view.outer * chunks + number) * plan.channels + column_number, stored);
            }
            const Scale scale = stored_scale(lo, hi, stored.mu, stored.sigma);
            mu = signed_center(scale.mu);
            inverse = reciprocal(scale.sigma);
        }
        chunk_mu[chunk][c] = mu;
        chunk_reciprocal[chunk][c] = inverse;
    }
    __syncthreads();
    if (valid == 0) return;

    float mu[VEC], inverse[VEC];
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
        mu[k] = chunk_mu[row / CHUNK_STRIPS][first + k];
        inverse[k] = chunk_reciprocal[row / CHUNK_STRIPS][first + k];
    }
    Levels levels[STRIP];
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        float x[VEC];
#pragma unroll
        for (int k = 0; k < VEC; ++k) x[k] = widen<VALUE_TYPE>(element(value[i], k));
        levels[i] = levels_of(x, mu, inverse, tables);
    }
    store_codes(plan, view, strip, channel, levels, valid);
}
