// Encode with runs along channels: RUN_LANES lanes of a warp share a run and exchange its range by shuffles.
//
// Each thread keeps a strip of eight tokens of VEC channels in registers, so every value is read once. Runs and chunks
// begin anew with every head; a chunk is a power of two of lanes, or it is the run.
#pragma once
#include "pages.cuh"

#define THREADS (LANES * STRIPS)
#define WARP 0xffffffffu
#define CHUNK_LANES (CHUNK == RANGE || CHUNK > RUN_LANES * VEC ? RUN_LANES : CHUNK / VEC)

// Smallest and largest value of a lane, later of a chunk and of a run. For 16-bit elements the smallest is in the low
// half and the largest, negated, in the high one: one shuffle and one comparison serve both.
struct Extremes {
#if PAIRED
    u32 pair;
#else
    float lo, hi;
#endif
};

__device__ __forceinline__ Extremes extremes(const Pack<VALUE_BYTES>& value, bool inside) {
#if PAIRED
    u32 low = value.word[0], high = value.word[0];
#pragma unroll
    for (int word = 1; word < Pack<VALUE_BYTES>::COUNT; ++word) {
        low = pair_of_lesser(low, value.word[word]);
        high = pair_of_greater(high, value.word[word]);
    }
    high ^= 0x80008000u;
    const u32 pair = pair_of_lesser(__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632));
    return {inside ? pair : VALUE_TYPE == FLOAT16 ? 0x7c007c00u : 0x7f807f80u};
#else
    float lo = widen<VALUE_TYPE>(element(value, 0)), hi = lo;
#pragma unroll
    for (int k = 1; k < VEC; ++k) {
        lo = fminf(lo, widen<VALUE_TYPE>(element(value, k)));
        hi = fmaxf(hi, widen<VALUE_TYPE>(element(value, k)));
    }
    return {inside ? lo : INFINITY_F, inside ? hi : -INFINITY_F};
#endif
}

// Extremes of `to` neighbouring lanes, from those of `from` lanes.
__device__ __forceinline__ Extremes combined(Extremes range, int from, int to) {
#pragma unroll
    for (int step = from; step < to; step *= 2) {
#if PAIRED
        range.pair = pair_of_lesser(range.pair, __shfl_xor_sync(WARP, range.pair, step));
#else
        range.lo = fminf(range.lo, __shfl_xor_sync(WARP, range.lo, step));
        range.hi = fmaxf(range.hi, __shfl_xor_sync(WARP, range.hi, step));
#endif
    }
    return range;
}

// Adding zero makes +0 of -0: the order of comparisons must not show.
__device__ __forceinline__ float lowest(const Extremes& range) {
#if PAIRED
    return __fadd_rn(widen<VALUE_TYPE>(range.pair & 0xffffu), 0.0f);
#else
    return __fadd_rn(range.lo, 0.0f);
#endif
}

__device__ __forceinline__ float highest(const Extremes& range) {
#if PAIRED
    return __fadd_rn(widen<VALUE_TYPE>(range.pair >> 16 ^ 0x8000u), 0.0f);
#else
    return __fadd_rn(range.hi, 0.0f);
#endif
}

// Mean of a chunk of `members` channels, summed channel by channel: its lanes take turns.
__device__ __forceinline__ float mean_of(const float (&x)[VEC], bool inside, u32 lane, int members) {
    float sum = 0.0f;
    for (int turn = 0; turn < CHUNK_LANES; ++turn) {
        const float before = __shfl_sync(WARP, sum, turn ? turn - 1 : 0, CHUNK_LANES);
        if (lane % CHUNK_LANES != turn) continue;
        sum = turn ? before : 0.0f;
#pragma unroll
        for (int k = 0; k < VEC; ++k)
            if (inside) sum = __fadd_rn(sum, x[k]);
    }
    // The last lane that holds channels of the chunk has the whole sum.
    sum = __shfl_sync(WARP, sum, members > 0 ? (members - 1) / VEC : 0, CHUNK_LANES);
    return __fdiv_rn(sum, (float)members);
}

__device__ __forceinline__ void encode(const Plan& plan) {
    __shared__ EncodeTables tables;
    const Tile where = this_tile(plan, plan.pages);
    const PageView view = page_view(plan, where.outer, where.page);
    const u32 thread = threadIdx.x, lane = thread % RUN_LANES;
    const i64 first_strip = where.tile * STRIPS, strip = first_strip + thread / LANES;

    // Runs of all heads, numbered as they are stored.
    const channel_t head_dim = (channel_t)plan.head_dim, per_head = (head_dim + RANGE - 1) / RANGE;
    const channel_t chunks_per_head = (head_dim + CHUNK - 1) / CHUNK, heads = (channel_t)plan.channels / head_dim;
    const channel_t run = (channel_t)where.group * (LANES / RUN_LANES) + thread % LANES / RUN_LANES;
    const channel_t head = run / per_head, begin = run % per_head * RANGE, in_head = begin + lane * VEC;
    const bool inside = head < heads && lane * VEC < RANGE && in_head < head_dim;
    const i64 channel = (i64)head * head_dim + in_head;
    u8* column = plan.values + outer_offset(plan, where.outer) + channel_offset(plan, inside ? channel : 0);

    if (where.outer == 0 && where.tile == 0 && where.group == 0) store_gaps(plan, view, thread, THREADS);
    if (where.tile == 0 && inside) store_sinks(plan, view, column, channel, thread / LANES, STRIPS);
    if (first_strip * STRIP >= view.coded) return;  // the whole block

    const int valid = inside ? valid_tokens(view.coded, strip) : 0;
    Pack<VALUE_BYTES> value[STRIP];
    load_strip(plan, view, column, strip, valid, value);
    load_tables(tables, plan.tables, thread, THREADS);
    __syncthreads();

    const i64 runs = (i64)heads * per_head, chunks = (i64)heads * chunks_per_head;
    const i64 row = view.outer * view.coded + strip * STRIP;
    i64 run_index = row * runs + run, chunk_index = row * chunks + (i64)head * chunks_per_head + in_head / CHUNK;
    const channel_t chunk_begin = in_head - in_head % CHUNK;
    const int members = inside ? (int)(head_dim - chunk_begin < CHUNK ? head_dim - chunk_begin : CHUNK) : 0;
    Levels levels[STRIP];
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        const bool there = i < valid;
        float x[VEC];
#pragma unroll
        for (int k = 0; k < VEC; ++k) x[k] = widen<VALUE_TYPE>(element(value[i], k));
        const Extremes chunk = combined(extremes(value[i], inside), 1, CHUNK_LANES);
        const Extremes range = combined(chunk, CHUNK_LANES, RUN_LANES);
        const float lo = lowest(range), hi = highest(range);
        const float mean = MEAN_CENTER ? mean_of(x, there, lane, members) : 0.0f;
        if (there && lane == 0) store_range(plan, view, run_index, lo, hi);
        Scale stored = {0.0f, 0.0f};
        if (METADATA) {
            stored = quantize_scale(lo, hi, lowest(chunk), highest(chunk), mean);
            if (there && lane % CHUNK_LANES == 0) store_scale(plan, view, chunk_index, stored);
        }
        const Scale scale = stored_scale(lo, hi, stored.mu, stored.sigma);
        float mu[VEC], inverse[VEC];
        mu[0] = signed_center(scale.mu);
        inverse[0] = reciprocal(scale.sigma);
#pragma unroll
        for (int k = 1; k < VEC; ++k) {
            mu[k] = mu[0];
            inverse[k] = inverse[0];
        }
        levels[i] = levels_of(x, mu, inverse, tables);
        run_index += runs;
        chunk_index += chunks;
    }
    if (valid) store_codes(plan, view, strip, channel, levels, valid);
}
