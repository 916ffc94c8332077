// Codes: magnitude levels by verified lookup, the split into two streams, bit planes.
//
// Codes of four channels travel side by side in the bytes of a 32-bit word.
#pragma once
#include "address.cuh"

#define WORDS ((VEC + 3) / 4)
#define LEVELS (((1 << (ANCHOR_BITS - 1)) - 1) << RESIDUAL_BITS)
#define BYTES_OF(n) ((u32)(n) * 0x01010101u)

// Tables of a set of parameters in device memory: 128 thresholds (the rest infinite), signed anchor factors, signed
// full factors, then the cells of the threshold grid.
#define THRESHOLDS 128
#define ANCHOR_FACTORS (1 << ANCHOR_BITS)
#define FULL_FACTORS 256
#define CELLS (CELL_BITS ? 2 << CELL_BITS : 0)

struct EncodeTables {
    float threshold[THRESHOLDS];
    u8 cell[CELLS ? CELLS : 1];
};

// Every thread of the block takes part; the caller synchronises.
__device__ __forceinline__ void load_tables(EncodeTables& shared, const u8* tables, u32 thread, u32 threads) {
    const float* threshold = reinterpret_cast<const float*>(tables);
    const u8* cell = tables + 4 * (THRESHOLDS + ANCHOR_FACTORS + FULL_FACTORS);
    for (u32 k = thread; k < THRESHOLDS; k += threads) shared.threshold[k] = threshold[k];
    for (u32 k = thread; k < CELLS; k += threads) shared.cell[k] = cell[k];
}

// The number of thresholds at or below t.
__device__ __forceinline__ u32 magnitude_level(float t, const EncodeTables& tables) {
#if CELL_BITS
    // Adding 2^(23 - CELL_BITS) leaves round(t · 2^CELL_BITS) in the low bits. A cell knows all thresholds below it
    // and has at most one inside, so one comparison decides. The mask keeps what is not a number inside the table.
    const u32 cell = __float_as_uint(__fadd_rn(t, (float)(1 << (23 - CELL_BITS)))) & (CELLS - 1);
    const u32 below = tables.cell[cell];
    return below + (t >= tables.threshold[below] ? 1u : 0u);
#else
    u32 below = 0;
#pragma unroll
    for (u32 step = THRESHOLDS / 2; step; step /= 2) below += t >= tables.threshold[below + step - 1] ? step : 0u;
    return below;
#endif
}

// Levels of one token's VEC channels and, where the value is below the centre, a byte of ones.
struct Levels {
    u32 level[WORDS], negative[WORDS];
};

__device__ __forceinline__ void add_level(Levels& levels, int k, float x, float mu, float reciprocal, const EncodeTables& tables) {
    const float distance = __fsub_rn(x, mu);
    const u32 level = magnitude_level(__fmul_rn(fabsf(distance), reciprocal), tables);
    const int shift = 8 * (k & 3);
    levels.level[k / 4] |= level << shift;
    levels.negative[k / 4] |= distance < 0.0f ? 0xffu << shift : 0u;
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
        store_pack<1>(plane + row * channels, pack);
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
            pack[row] = load_pack<1>(plane + row * channels);
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
