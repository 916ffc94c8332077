// Codes: magnitude levels by verified lookup, the split into two streams, bit planes.
//
// Codes of four channels travel side by side in the bytes of a 32-bit word.
#pragma once
#include "address.cuh"

#define WORDS ((VEC + 3) / 4)
#define LEVELS (((1 << (ANCHOR_BITS - 1)) - 1) << RESIDUAL_BITS)
#define BYTES_OF(n) ((u32)(n) * 0x01010101u)

// Tables of a set of parameters in device memory: 128 thresholds (the rest infinite), signed anchor factors, signed
// full factors, then of every cell of the grid the next threshold and, as 32-bit integers, the thresholds below it.
#define THRESHOLDS 128
#define ANCHOR_FACTORS (1 << ANCHOR_BITS)
#define FULL_FACTORS (1 << (ANCHOR_BITS + RESIDUAL_BITS))
#if CELL_BITS
#define CELLS (2 << CELL_BITS)  // the second half is that of t = 1 and more, all alike
#endif

struct EncodeTables {
#if CELL_BITS
    float next[CELLS];
    u32 below[CELLS];
#else
    float threshold[THRESHOLDS];
#endif
};

// Every thread of the block takes part; the caller synchronises.
__device__ __forceinline__ void load_tables(EncodeTables& shared, const u8* tables, u32 thread, u32 threads) {
    const float* threshold = reinterpret_cast<const float*>(tables);
#if CELL_BITS
    const float* next = threshold + THRESHOLDS + ANCHOR_FACTORS + FULL_FACTORS;
    const u32* below = reinterpret_cast<const u32*>(next + CELLS);
    for (u32 k = thread; k < CELLS; k += threads) {
        shared.next[k] = next[k];
        shared.below[k] = below[k];
    }
#else
    for (u32 k = thread; k < THRESHOLDS; k += threads) shared.threshold[k] = threshold[k];
#endif
}

// A number of thresholds at or below t, and a float whose sign is clear if there is one more.
struct Candidate {
    u32 below;
    float margin;
};

__device__ __forceinline__ Candidate candidate(float t, const EncodeTables& tables) {
#if CELL_BITS
    // Adding 2^(21 - CELL_BITS) leaves round(t · 4 · 2^CELL_BITS) in the low bits: four times the cell, and a rest that
    // the mask drops, with what is not a number. A cell knows all thresholds below it and has at most one inside.
    const u32 offset = __float_as_uint(__fadd_rn(t, (float)(1 << (21 - CELL_BITS)))) & (4 * CELLS - 4);
    const float next = *reinterpret_cast<const float*>(reinterpret_cast<const u8*>(tables.next) + offset);
    const u32 below = *reinterpret_cast<const u32*>(reinterpret_cast<const u8*>(tables.below) + offset);
    return {below, __fsub_rn(t, next)};  // exact enough: a difference is never rounded to the other sign, nor to zero
#else
    u32 below = 0;
#pragma unroll
    for (u32 step = THRESHOLDS / 2; step; step /= 2) below += t >= tables.threshold[below + step - 1] ? step : 0u;
    return {below, -1.0f};
#endif
}

// A centre as `levels_of` wants it: x - μ̂ is then never -0, and its sign says on which side of the centre x lies.
__device__ __forceinline__ float signed_center(float mu) { return mu == 0.0f ? -0.0f : mu; }

// Levels of one token's VEC channels and, where the value is below the centre, a byte of ones.
struct Levels {
    u32 level[WORDS], negative[WORDS];
};

// One in every byte whose float is negative.
__device__ __forceinline__ u32 signs(float a, float b, float c, float d) {
    const u32 low = __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x0073);
    const u32 high = __byte_perm(__float_as_uint(c), __float_as_uint(d), 0x0073);
    return __byte_perm(low, high, 0x5410) >> 7 & BYTES_OF(1);
}

__device__ __forceinline__ Levels levels_of(const float (&x)[VEC], const float (&mu)[VEC], const float (&reciprocal)[VEC],
                                            const EncodeTables& tables) {
    Levels result;
#pragma unroll
    for (int word = 0; word < WORDS; ++word) {
        float distance[4] = {0.0f, 0.0f, 0.0f, 0.0f}, margin[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        u32 below = 0;
#pragma unroll
        for (int k = 0; k < (VEC < 4 ? VEC : 4); ++k) {
            distance[k] = __fsub_rn(x[4 * word + k], mu[4 * word + k]);
            const Candidate level = candidate(__fmul_rn(fabsf(distance[k]), reciprocal[4 * word + k]), tables);
            below |= level.below << (8 * k);
            margin[k] = level.margin;
        }
        result.level[word] = below + (BYTES_OF(1) ^ signs(margin[0], margin[1], margin[2], margin[3]));
        result.negative[word] = signs(distance[0], distance[1], distance[2], distance[3]) * 0xffu;
    }
    return result;
}

__device__ __forceinline__ u32 anchor_code(u32 level, u32 negative) {
    const u32 magnitude = (level + BYTES_OF((1 << (RESIDUAL_BITS - 1)) - 1)) >> RESIDUAL_BITS & BYTES_OF(0xff >> RESIDUAL_BITS);
    return (magnitude ^ negative) & BYTES_OF((1 << ANCHOR_BITS) - 1);
}

// V_res = (V_mag << r) - I, of which r bits are kept: the low bits of -I.
__device__ __forceinline__ u32 residual_code(u32 level) {
    const u32 mask = (1 << RESIDUAL_BITS) - 1;
    return (BYTES_OF(mask + 1) - (level & BYTES_OF(mask))) & BYTES_OF(mask);
}

// --- bit planes of a strip ----------------------------------------------------------------------------------------
// Codes of 3, 5 and 6 bits are planes of 2+1, 4+1 and 4+2 bits; the first one holds the lowest bits.
__host__ __device__ constexpr int low_width(int bits) { return bits == 2 || bits == 3 ? 2 : 4; }
__host__ __device__ constexpr int high_width(int bits) { return bits - low_width(bits); }

// Row `row` of the plane of WIDTH bits from bit SHIFT of the strip's codes.
template <int WIDTH, int SHIFT>
__device__ __forceinline__ u32 plane_row(const u32 (&code)[STRIP][WORDS], int row, int word) {
    u32 bytes = 0;
#pragma unroll
    for (int slot = 0; slot < 8 / WIDTH; ++slot)
        bytes |= (code[row * (8 / WIDTH) + slot][word] >> SHIFT & BYTES_OF((1 << WIDTH) - 1)) << (WIDTH * slot);
    return bytes;
}

// `plane` is where the strip's first row begins for this pack; `valid` tokens of the strip are coded, the others zero.
template <int WIDTH, int SHIFT>
__device__ __forceinline__ void store_plane(u8* plane, i64 channels, const u32 (&code)[STRIP][WORDS], int valid) {
#pragma unroll
    for (int row = 0; row < WIDTH; ++row) {
        if (row * (8 / WIDTH) >= valid) break;
        Pack<1> pack;
#pragma unroll
        for (int word = 0; word < WORDS; ++word) pack.word[word] = plane_row<WIDTH, SHIFT>(code, row, word);
        store_pack<1>(plane, pack);
        plane += channels;
    }
}

template <int BITS>
__device__ __forceinline__ void store_code(const Plan& plan, const PageView& view, int first_section, i64 strip, i64 channel,
                                           const u32 (&code)[STRIP][WORDS], int valid) {
    constexpr int low = low_width(BITS), high = high_width(BITS);
    const i64 rows = (view.coded * low + 7) / 8;
    store_plane<low, 0>(section(plan, view, first_section) + (view.outer * rows + strip * low) * plan.channels + channel,
                        plan.channels, code, valid);
    if constexpr (high > 0) {
        constexpr int width = high;
        const i64 more = (view.coded * width + 7) / 8;
        store_plane<width, low>(section(plan, view, first_section + 1) + (view.outer * more + strip * width) * plan.channels + channel,
                                plan.channels, code, valid);
    }
}

// Split the levels of a strip and store all its planes. Levels of tokens from `valid` on do not count.
__device__ __forceinline__ void store_codes(const Plan& plan, const PageView& view, i64 strip, i64 channel,
                                            const Levels (&levels)[STRIP], int valid) {
    u32 code[STRIP][WORDS];
#pragma unroll
    for (int i = 0; i < STRIP; ++i)
#pragma unroll
        for (int word = 0; word < WORDS; ++word)
            code[i][word] = i < valid ? anchor_code(levels[i].level[word], levels[i].negative[word]) : 0u;
    store_code<ANCHOR_BITS>(plan, view, ANCHOR_LOW, strip, channel, code, valid);
#pragma unroll
    for (int i = 0; i < STRIP; ++i)
#pragma unroll
        for (int word = 0; word < WORDS; ++word) code[i][word] = i < valid ? residual_code(levels[i].level[word]) : 0u;
    store_code<RESIDUAL_BITS>(plan, view, RESIDUAL_LOW, strip, channel, code, valid);
}

// OR the strip's codes of BITS bits, shifted left by LEFT, into `code`.
template <int WIDTH, int LEFT>
__device__ __forceinline__ void load_plane(const u8* plane, i64 channels, u32 (&code)[STRIP][WORDS], int valid) {
    Pack<1> pack[WIDTH];
#pragma unroll
    for (int row = 0; row < WIDTH; ++row)
        if (row * (8 / WIDTH) < valid) {
            pack[row] = load_pack<1>(plane);
            plane += channels;
        } else {
#pragma unroll
            for (int word = 0; word < WORDS; ++word) pack[row].word[word] = 0;
        }
#pragma unroll
    for (int i = 0; i < STRIP; ++i)
#pragma unroll
        for (int word = 0; word < WORDS; ++word)
            code[i][word] |= (pack[i * WIDTH / 8].word[word] >> (i * WIDTH % 8) & BYTES_OF((1 << WIDTH) - 1)) << LEFT;
}

template <int BITS, int LEFT>
__device__ __forceinline__ void load_code(const Plan& plan, const PageView& view, int first_section, i64 strip, i64 channel,
                                          u32 (&code)[STRIP][WORDS], int valid) {
    constexpr int low = low_width(BITS), high = high_width(BITS);
    const i64 rows = (view.coded * low + 7) / 8;
    load_plane<low, LEFT>(section(plan, view, first_section) + (view.outer * rows + strip * low) * plan.channels + channel,
                          plan.channels, code, valid);
    if constexpr (high > 0) {
        constexpr int width = high;
        const i64 more = (view.coded * width + 7) / 8;
        load_plane<width, LEFT + low>(section(plan, view, first_section + 1) + (view.outer * more + strip * width) * plan.channels + channel,
                                      plan.channels, code, valid);
    }
}
