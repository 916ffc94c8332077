// Decode: lynxq_decode_anchor reads the anchor stream alone, lynxq_decode_full both.
//
// A thread owns DEPTH strips of eight tokens of VEC channels, all of one chunk where runs lie along tokens: centre and
// scale are worked out once. Nothing is shared but the table of reconstruction factors.
#include "pages.cuh"

#define THREADS (LANES * STRIPS)
// Along tokens, strips of a thread have one chunk; otherwise scales change from token to token.
#define ONE_CHUNK (!CHANNEL_AXIS && CHUNK % (STRIP * DEPTH) == 0)

struct Bounds {
    Scale scale;
    float lo, hi;
};

// Where range and scale of a channel at a coded token are, in entries of their sections, and how far the next token's.
struct Cursor {
    i64 run, chunk, run_step, chunk_step;
};

__device__ __forceinline__ Cursor cursor_at(const Plan& plan, const PageView& view, i64 token, i64 channel) {
#if CHANNEL_AXIS
    const channel_t head_dim = (channel_t)plan.head_dim, per_head = (head_dim + RANGE - 1) / RANGE;
    const channel_t chunks_per_head = (head_dim + CHUNK - 1) / CHUNK, heads = (channel_t)plan.channels / head_dim;
    const channel_t head = (channel_t)channel / head_dim, in_head = (channel_t)channel % head_dim;
    const i64 row = view.outer * view.coded + token, runs = (i64)heads * per_head, chunks = (i64)heads * chunks_per_head;
    return {row * runs + (i64)head * per_head + in_head / RANGE, row * chunks + (i64)head * chunks_per_head + in_head / CHUNK, runs, chunks};
#else
    const i64 runs = ceil_div(view.coded, RANGE), chunks = ceil_div(view.coded, CHUNK);
    return {(view.outer * runs + token / RANGE) * plan.channels + channel,
            (view.outer * chunks + token / CHUNK) * plan.channels + channel, 0, 0};
#endif
}

// Scale and range of the VEC channels at a token, from their places in the sections.
__device__ __forceinline__ void load_bounds(const Plan& plan, const PageView& view, const Cursor& at, Bounds (&bounds)[VEC]) {
    const int meta = METADATA ? METADATA : 1;
    const u8 *lo = section(plan, view, LO) + at.run * VALUE_BYTES, *hi = section(plan, view, HI) + at.run * VALUE_BYTES;
    const u8 *mu = section(plan, view, MU) + at.chunk * meta, *sigma = section(plan, view, SIGMA) + at.chunk * meta;
#if CHANNEL_AXIS  // all VEC channels are in one chunk
    Bounds one;
    one.lo = widen<VALUE_TYPE>(load_bits<VALUE_BYTES>(lo));
    one.hi = widen<VALUE_TYPE>(load_bits<VALUE_BYTES>(hi));
    one.scale = stored_scale(one.lo, one.hi, METADATA ? stored_mu(load_bits<meta>(mu)) : 0.0f,
                             METADATA ? stored_sigma(load_bits<meta>(sigma)) : 0.0f);
#pragma unroll
    for (int k = 0; k < VEC; ++k) bounds[k] = one;
#else
    const Pack<VALUE_BYTES> low = load_pack<VALUE_BYTES>(lo), high = load_pack<VALUE_BYTES>(hi);
    Pack<meta> center, scale;
    if (METADATA) {
        center = load_pack<meta>(mu);
        scale = load_pack<meta>(sigma);
    }
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
        bounds[k].lo = widen<VALUE_TYPE>(element(low, k));
        bounds[k].hi = widen<VALUE_TYPE>(element(high, k));
        bounds[k].scale = stored_scale(bounds[k].lo, bounds[k].hi, METADATA ? stored_mu(element(center, k)) : 0.0f,
                                       METADATA ? stored_sigma(element(scale, k)) : 0.0f);
    }
#endif
}

__device__ __forceinline__ void store_values(u8* p, const float (&value)[VEC]) {
    Pack<ARRAY_BYTES> pack;
#pragma unroll
    for (int word = 0; word < Pack<ARRAY_BYTES>::COUNT; ++word) {
        if (ARRAY_TYPE == FLOAT32) {
            pack.word[word] = __float_as_uint(value[word]);
        } else {
            const int low = word * 2 < VEC ? word * 2 : 0, high = low + 1 < VEC ? low + 1 : low;
            const float a = saturate(value[low]), b = saturate(value[high]);
            pack.word[word] = ARRAY_TYPE == FLOAT16 ? floats_to_halves(a, b) : floats_to_bfloats(a, b);
        }
    }
    store_pack<ARRAY_BYTES>(p, pack);
}

// The verbatim tokens, in the element type of the array.
__device__ __forceinline__ void copy_sinks(const Plan& plan, const PageView& view, u8* column, i64 channel, int first, int step) {
    const u8* sinks = section(plan, view, SINKS);
    for (int token = first; token < view.sinks; token += step) {
        const Pack<VALUE_BYTES> pack =
            load_pack<VALUE_BYTES>(sinks + ((view.outer * view.sinks + token) * plan.channels + channel) * VALUE_BYTES);
        u8* target = value_address(plan, column, view.page * PAGE + token);
#if ARRAY_TYPE == VALUE_TYPE
        store_pack<VALUE_BYTES>(target, pack);
#else
        float value[VEC];
#pragma unroll
        for (int k = 0; k < VEC; ++k) value[k] = widen<VALUE_TYPE>(element(pack, k));
        store_values(target, value);
#endif
    }
}

template <bool FULL>
__device__ __forceinline__ void decode(const Plan& plan) {
    constexpr int factors = FULL ? FULL_FACTORS : ANCHOR_FACTORS;
    __shared__ float factor[factors];
    const i64 all_pages = ceil_div(plan.length, PAGE);  // tokens that are not valid become zero
    const Tile where = this_tile(plan, all_pages);
    const PageView view = page_view(plan, where.outer, where.page);
    const u32 thread = threadIdx.x, row = thread / LANES;
    const i64 channel = (where.group * LANES + thread % LANES) * VEC;
    const i64 page_end = (where.page + 1) * PAGE, end = page_end < plan.length ? page_end : plan.length;
    const float* table = reinterpret_cast<const float*>(plan.tables) + THRESHOLDS + (FULL ? ANCHOR_FACTORS : 0);
    for (u32 k = thread; k < factors; k += THREADS) factor[k] = table[k];
    __syncthreads();
    if (channel >= plan.channels) return;
    u8* column = plan.values + outer_offset(plan, where.outer) + channel_offset(plan, channel);
    if (where.tile == 0) copy_sinks(plan, view, column, channel, row, STRIPS);

    Bounds bounds[VEC];
#pragma unroll 1
    for (int depth = 0; depth < DEPTH; ++depth) {
        const i64 strip = (where.tile * STRIPS + row) * DEPTH + depth;
        const int valid = valid_tokens(view.coded, strip);
        Rows rows(plan, column, view.first + strip * STRIP);
        if (valid) {
            Cursor at = cursor_at(plan, view, strip * STRIP, channel);
            if (!CHANNEL_AXIS && (!ONE_CHUNK || depth == 0)) load_bounds(plan, view, at, bounds);
            u32 code[STRIP][WORDS];
#pragma unroll
            for (int i = 0; i < STRIP; ++i)
#pragma unroll
                for (int word = 0; word < WORDS; ++word) code[i][word] = 0;
            load_code<ANCHOR_BITS, FULL ? RESIDUAL_BITS : 0>(plan, view, ANCHOR_LOW, strip, channel, code, valid);
            if (FULL) load_code<RESIDUAL_BITS, 0>(plan, view, RESIDUAL_LOW, strip, channel, code, valid);
#pragma unroll
            for (int i = 0; i < STRIP; ++i) {
                if (i >= valid) break;
                if (!CHANNEL_AXIS && CHUNK % STRIP != 0 && i > 0 && (strip * STRIP + i) % CHUNK == 0)
                    at = cursor_at(plan, view, strip * STRIP + i, channel);
                if (CHANNEL_AXIS || CHUNK % STRIP != 0) load_bounds(plan, view, at, bounds);
                at.run += at.run_step;
                at.chunk += at.chunk_step;
                float value[VEC];
#pragma unroll
                for (int k = 0; k < VEC; ++k)
                    value[k] = reconstruct(factor[code[i][k / 4] >> (8 * (k & 3)) & 0xff], bounds[k].scale, bounds[k].lo, bounds[k].hi);
                store_values(rows.step(), value);
            }
        }
#if !SLOTS
        for (int i = valid; i < STRIP; ++i) {
            const i64 token = view.first + strip * STRIP + i;
            if (token >= end) break;
            const float zero[VEC] = {0.0f};
            store_values(rows.step(), zero);
        }
#endif
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) lynxq_decode_anchor(const Plan plan) { decode<false>(plan); }

extern "C" __global__ void __launch_bounds__(THREADS) lynxq_decode_full(const Plan plan) { decode<true>(plan); }
