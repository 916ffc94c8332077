// Encode with runs along channels: RUN_LANES lanes of a warp share a run and exchange its range by shuffles.
//
// Each thread keeps a strip of eight tokens of VEC channels in registers, so every value is read once. Runs and chunks
// begin anew with every head; a chunk is a power of two of lanes, or it is the run.
#pragma once
#include "pages.cuh"

#define THREADS (LANES * STRIPS)
#define WARP 0xffffffffu
#define CHUNK_LANES (CHUNK == RANGE || CHUNK > RUN_LANES * VEC ? RUN_LANES : CHUNK / VEC)

__device__ __forceinline__ void combine(float& lo, float& hi, int lanes) {
    for (int step = 1; step < lanes; step *= 2) {
        lo = fminf(lo, __shfl_xor_sync(WARP, lo, step));
        hi = fmaxf(hi, __shfl_xor_sync(WARP, hi, step));
    }
}

__device__ __forceinline__ void encode(const Plan& plan) {
    __shared__ EncodeTables tables;
    const Tile where = this_tile(plan, plan.pages);
    const PageView view = page_view(plan, where.outer, where.page);
    const u32 thread = threadIdx.x, lane = thread % RUN_LANES;
    const i64 first_strip = where.tile * STRIPS, strip = first_strip + thread / LANES;

    // Runs of all heads, numbered as they are stored.
    const i64 per_head = ceil_div(plan.head_dim, RANGE), heads = plan.channels / plan.head_dim, runs = heads * per_head;
    const i64 run = where.group * (LANES / RUN_LANES) + thread % LANES / RUN_LANES;
    const i64 head = run / per_head, in_head = run % per_head * RANGE, offset = (i64)lane * VEC;
    const i64 left = plan.head_dim - in_head, length = left < RANGE ? left : RANGE;
    const bool inside = run < runs && offset < length;
    const i64 channel = head * plan.head_dim + in_head + offset;
    u8* column = plan.values + outer_offset(plan, where.outer) + channel_offset(plan, inside ? channel : 0);

    if (where.outer == 0 && where.tile == 0 && where.group == 0) store_gaps(plan, view, thread, THREADS);
    if (where.tile == 0 && inside) store_sinks(plan, view, column, channel, thread / LANES, STRIPS);
    if (first_strip * STRIP >= view.coded) return;  // the whole block

    const int valid = inside ? valid_tokens(view.coded, strip) : 0;
    Pack<VALUE_BYTES> value[STRIP];
    load_strip(plan, view, column, strip, valid, value);
    load_tables(tables, plan.tables, thread, THREADS);
    __syncthreads();

    const i64 chunks_per_head = ceil_div(plan.head_dim, CHUNK), chunks = heads * chunks_per_head;
    const i64 chunk = head * chunks_per_head + (in_head + offset) / CHUNK;
    Levels levels[STRIP];
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        float x[VEC], lo = INFINITY_F, hi = -INFINITY_F;
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            x[k] = widen<VALUE_TYPE>(element(value[i], k));
            lo = fminf(lo, x[k]);
            hi = fmaxf(hi, x[k]);
        }
        if (i >= valid) {
            lo = INFINITY_F;
            hi = -INFINITY_F;
        }
        combine(lo, hi, CHUNK_LANES);
        float run_lo = lo, run_hi = hi;
        if (CHUNK_LANES < RUN_LANES) {
            for (int step = CHUNK_LANES; step < RUN_LANES; step *= 2) {
                run_lo = fminf(run_lo, __shfl_xor_sync(WARP, run_lo, step));
                run_hi = fmaxf(run_hi, __shfl_xor_sync(WARP, run_hi, step));
            }
        }
        lo = __fadd_rn(lo, 0.0f);  // -0 becomes +0: the order of comparisons must not show
        hi = __fadd_rn(hi, 0.0f);
        run_lo = __fadd_rn(run_lo, 0.0f);
        run_hi = __fadd_rn(run_hi, 0.0f);
        float mean = 0.0f;
#if MEAN_CENTER
        // Sums run channel by channel: the lanes of a chunk take turns.
        float sum = 0.0f;
        for (int turn = 0; turn < CHUNK_LANES; ++turn) {
            const float before = __shfl_sync(WARP, sum, turn ? turn - 1 : 0, CHUNK_LANES);
            if (lane % CHUNK_LANES == turn) {
                sum = turn ? before : 0.0f;
                if (i < valid)
#pragma unroll
                    for (int k = 0; k < VEC; ++k) sum = __fadd_rn(sum, x[k]);
            }
        }
        const i64 begin = in_head + offset / CHUNK * CHUNK, rest = plan.head_dim - begin;
        const int members = (int)(rest < CHUNK ? rest : CHUNK);
        // The last lane that holds channels of the chunk has the whole sum.
        sum = __shfl_sync(WARP, sum, members > 0 ? (members - 1) / VEC : 0, CHUNK_LANES);
        mean = __fdiv_rn(sum, (float)members);
#endif
        const i64 token = strip * STRIP + i;
        Scale stored = {0.0f, 0.0f};
        if (i < valid) {
            if (lane == 0) store_range(plan, view, (view.outer * view.coded + token) * runs + run, run_lo, run_hi);
            if (METADATA) {
                stored = quantize_scale(run_lo, run_hi, lo, hi, mean);
                if (lane % CHUNK_LANES == 0) store_scale(plan, view, (view.outer * view.coded + token) * chunks + chunk, stored);
            }
        }
        const Scale scale = stored_scale(run_lo, run_hi, stored.mu, stored.sigma);
        const float inverse = reciprocal(scale.sigma);
#pragma unroll
        for (int word = 0; word < WORDS; ++word) levels[i].level[word] = levels[i].negative[word] = 0;
#pragma unroll
        for (int k = 0; k < VEC; ++k) add_level(levels[i], k, x[k], scale.mu, inverse, tables);
    }
    if (valid) store_codes(plan, view, strip, channel, levels, valid);
}
