// Encode whatever the two fast encoders do not: runs or chunks that are not whole strips or lanes, and very long runs.
//
// One thread walks over one channel of a page (runs along tokens), or over one run of channels of a strip (runs along
// channels). It reads every value three times, from the cache as far as it reaches.
#pragma once
#include "pages.cuh"

#define THREADS (LANES * STRIPS)

__device__ __forceinline__ float value_at(const Plan& plan, u8* column, i64 token) {
    return widen<VALUE_TYPE>(load_bits<VALUE_BYTES>(value_address(plan, column, token)));
}

// A run of values, one after the other: tokens of a channel, or channels of a token.
struct Walk {
    const Plan& plan;
    u8* base;  // runs along tokens: of the channel; along channels: of the outer index
    i64 token, channel;
    __device__ float at(i64 k) const {
        if (CHANNEL_AXIS) return value_at(plan, base + channel_offset(plan, channel + k), token);
        return value_at(plan, base, token + k);
    }
};

struct Statistics {
    float lo, hi, sum;
};

__device__ __forceinline__ Statistics statistics(const Walk& walk, i64 begin, i64 end) {
    Statistics result = {INFINITY_F, -INFINITY_F, 0.0f};
    for (i64 k = begin; k < end; ++k) {
        const float x = walk.at(k);
        result.lo = fminf(result.lo, x);
        result.hi = fmaxf(result.hi, x);
        if (MEAN_CENTER) result.sum = __fadd_rn(result.sum, x);
    }
    result.lo = __fadd_rn(result.lo, 0.0f);  // -0 becomes +0: the order of comparisons must not show
    result.hi = __fadd_rn(result.hi, 0.0f);
    return result;
}

// Centre and scale of the chunk from `begin` to `end`, stored at `index`.
__device__ __forceinline__ Scale chunk_scale(const Plan& plan, const PageView& view, const Walk& walk, const Statistics& run,
                                             i64 begin, i64 end, i64 index) {
    Scale stored = {0.0f, 0.0f};
    if (METADATA) {
        const Statistics chunk = statistics(walk, begin, end);
        stored = quantize_scale(run.lo, run.hi, chunk.lo, chunk.hi, __fdiv_rn(chunk.sum, (float)(int)(end - begin)));
        store_scale(plan, view, index, stored);
    }
    return stored_scale(run.lo, run.hi, stored.mu, stored.sigma);
}

__device__ __forceinline__ i64 least(i64 a, i64 b) { return a < b ? a : b; }

__device__ void encode_channel_of_page(const Plan& plan, const PageView& view, i64 channel, const EncodeTables& tables) {
    u8* column = plan.values + outer_offset(plan, view.outer) + channel_offset(plan, channel);
    const Walk walk = {plan, column, view.first, channel};
    const i64 runs = ceil_div(view.coded, RANGE), chunks = ceil_div(view.coded, CHUNK);
    Levels levels[STRIP];
    for (i64 run = 0; run < runs; ++run) {
        const i64 run_end = least((run + 1) * RANGE, view.coded);
        const Statistics range = statistics(walk, run * RANGE, run_end);
        store_range(plan, view, (view.outer * runs + run) * plan.channels + channel, range.lo, range.hi);
        for (i64 begin = run * RANGE; begin < run_end; begin += CHUNK) {
            const i64 end = least(begin + CHUNK, run_end);
            const Scale scale = chunk_scale(plan, view, walk, range, begin, end,
                                            (view.outer * chunks + begin / CHUNK) * plan.channels + channel);
            const float mu[VEC] = {signed_center(scale.mu)}, inverse[VEC] = {reciprocal(scale.sigma)};
            for (i64 token = begin; token < end; ++token) {
                const int slot = (int)(token % STRIP);
                const float x[VEC] = {walk.at(token)};
                const Levels one = levels_of(x, mu, inverse, tables);
#pragma unroll
                for (int i = 0; i < STRIP; ++i)
                    if (i == slot) levels[i] = one;
                if (slot == STRIP - 1 || token == view.coded - 1) store_codes(plan, view, token / STRIP, channel, levels, slot + 1);
            }
        }
    }
}

__device__ void encode_run_of_strip(const Plan& plan, const PageView& view, i64 run, i64 strip, const EncodeTables& tables) {
    const i64 per_head = ceil_div(plan.head_dim, RANGE), chunks_per_head = ceil_div(plan.head_dim, CHUNK);
    const i64 heads = plan.channels / plan.head_dim, runs = heads * per_head, chunks = heads * chunks_per_head;
    const i64 head = run / per_head, in_head = run % per_head * RANGE, length = least(RANGE, plan.head_dim - in_head);
    const i64 channel = head * plan.head_dim + in_head;
    u8* base = plan.values + outer_offset(plan, view.outer);
    const int valid = valid_tokens(view.coded, strip);
    Statistics range[STRIP];
    for (int i = 0; i < valid; ++i) {
        const i64 token = strip * STRIP + i;
        range[i] = statistics({plan, base, view.first + token, channel}, 0, length);
        store_range(plan, view, (view.outer * view.coded + token) * runs + run, range[i].lo, range[i].hi);
    }
    for (i64 begin = 0; begin < length; begin += CHUNK) {
        const i64 end = least(begin + CHUNK, length), chunk = head * chunks_per_head + (in_head + begin) / CHUNK;
        Scale scale[STRIP];
        for (int i = 0; i < valid; ++i) {
            const i64 token = strip * STRIP + i;
            scale[i] = chunk_scale(plan, view, {plan, base, view.first + token, channel}, range[i], begin, end,
                                   (view.outer * view.coded + token) * chunks + chunk);
            scale[i].sigma = reciprocal(scale[i].sigma);
        }
        for (i64 k = begin; k < end; ++k) {
            Levels levels[STRIP];
#pragma unroll
            for (int i = 0; i < STRIP; ++i) {
                if (i < valid) {
                    const Walk walk = {plan, base, view.first + strip * STRIP + i, channel};
                    const float x[VEC] = {walk.at(k)}, mu[VEC] = {signed_center(scale[i].mu)}, inverse[VEC] = {scale[i].sigma};
                    levels[i] = levels_of(x, mu, inverse, tables);
                }
            }
            store_codes(plan, view, strip, channel + k, levels, valid);
        }
    }
}

__device__ __forceinline__ void encode(const Plan& plan) {
    __shared__ EncodeTables tables;
    const Tile where = this_tile(plan, plan.pages);
    const PageView view = page_view(plan, where.outer, where.page);
    const u32 thread = threadIdx.x;
    load_tables(tables, plan.tables, thread, THREADS);
    __syncthreads();
    if (where.outer == 0 && where.tile == 0 && where.group == 0) store_gaps(plan, view, thread, THREADS);
    // Along channels a group counts runs, otherwise channels.
    const i64 column = where.group * LANES + thread % LANES, strip = where.tile * STRIPS + thread / LANES;
#if CHANNEL_AXIS
    const i64 runs = plan.channels / plan.head_dim * ceil_div(plan.head_dim, RANGE);
    if (column < runs && strip * STRIP < view.coded) encode_run_of_strip(plan, view, column, strip, tables);
#else
    if (column < plan.channels && strip == 0 && view.coded > 0) encode_channel_of_page(plan, view, column, tables);
#endif
    if (where.tile != 0 || where.group != 0) return;
    for (i64 channel = thread; channel < plan.channels; channel += THREADS)
        store_sinks(plan, view, plan.values + outer_offset(plan, view.outer) + channel_offset(plan, channel), channel, 0, 1);
}
