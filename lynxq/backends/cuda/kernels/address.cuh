// Where things are: pages and sections of the streams, values of strided and of paged arrays. Offsets are 64-bit.
#pragma once
#include "numeric.cuh"

// --- unaligned access -----------------------------------------------------------------------------------------
template <int BYTES>
__device__ __forceinline__ u32 load_bits(const u8* p) {
    if (BYTES == 1) return *p;
    if (BYTEWISE) {
        u32 bits = 0;
#pragma unroll
        for (int k = 0; k < BYTES; ++k) bits |= (u32)p[k] << (8 * k);
        return bits;
    }
    return BYTES == 2 ? (u32)*reinterpret_cast<const u16*>(p) : *reinterpret_cast<const u32*>(p);
}

template <int BYTES>
__device__ __forceinline__ void store_bits(u8* p, u32 bits) {
    if (BYTES == 1) {
        *p = (u8)bits;
    } else if (BYTEWISE) {
#pragma unroll
        for (int k = 0; k < BYTES; ++k) p[k] = (u8)(bits >> (8 * k));
    } else if (BYTES == 2) {
        *reinterpret_cast<u16*>(p) = (u16)bits;
    } else {
        *reinterpret_cast<u32*>(p) = bits;
    }
}

// --- VEC elements side by side ----------------------------------------------------------------------------------
template <int BYTES>  // of one element
struct Pack {
    enum { COUNT = VEC * BYTES < 4 ? 1 : VEC * BYTES / 4 };
    u32 word[COUNT];
};

template <int BYTES>
__device__ __forceinline__ u32 element(const Pack<BYTES>& pack, int k) {
    if (BYTES == 4) return pack.word[k];
    if (BYTES == 2) return k & 1 ? pack.word[k / 2] >> 16 : pack.word[k / 2] & 0xffffu;
    return pack.word[k / 4] >> (8 * (k & 3)) & 0xffu;
}

template <int BYTES>
__device__ __forceinline__ Pack<BYTES> load_pack(const u8* p) {
    Pack<BYTES> pack;
    if constexpr (VEC == 1) {
        pack.word[0] = load_bits<BYTES>(p);
    } else if constexpr (VEC * BYTES >= 16) {
#pragma unroll
        for (int k = 0; k < Pack<BYTES>::COUNT; k += 4) {
            const uint4 part = *reinterpret_cast<const uint4*>(p + 4 * k);
            pack.word[k] = part.x;
            pack.word[k + 1] = part.y;
            pack.word[k + 2] = part.z;
            pack.word[k + 3] = part.w;
        }
    } else if constexpr (VEC * BYTES == 8) {
        const uint2 part = *reinterpret_cast<const uint2*>(p);
        pack.word[0] = part.x;
        pack.word[1] = part.y;
    } else {
        pack.word[0] = *reinterpret_cast<const u32*>(p);
    }
    return pack;
}

template <int BYTES>
__device__ __forceinline__ void store_pack(u8* p, const Pack<BYTES>& pack) {
    const u32* word = pack.word;
    if constexpr (VEC == 1) {
        store_bits<BYTES>(p, word[0]);
    } else if constexpr (VEC * BYTES >= 16) {
#pragma unroll
        for (int k = 0; k < Pack<BYTES>::COUNT; k += 4)
            *reinterpret_cast<uint4*>(p + 4 * k) = make_uint4(word[k], word[k + 1], word[k + 2], word[k + 3]);
    } else if constexpr (VEC * BYTES == 8) {
        *reinterpret_cast<uint2*>(p) = make_uint2(word[0], word[1]);
    } else {
        *reinterpret_cast<u32*>(p) = word[0];
    }
}

// --- a page -----------------------------------------------------------------------------------------------------
struct PageView {
    i64 outer, page, first, coded;  // `first`: the first coded token
    int sinks, kind;
    u8 *anchor, *residual;
};

__device__ __forceinline__ PageView page_view(const Plan& plan, i64 outer, i64 page) {
    PageView view;
    view.outer = outer;
    view.page = page;
    view.sinks = page == 0 ? (int)plan.sinks : 0;
    view.kind = page == 0 ? 0 : page == plan.pages - 1 ? 2 : 1;
    const i64 start = page * PAGE, left = plan.tokens - start;
    view.first = start + view.sinks;
    view.coded = page < plan.pages ? (left < PAGE ? left : PAGE) - view.sinks : 0;
    view.anchor = plan.anchor + (page == 0 ? 0 : plan.first_anchor + (page - 1) * plan.full_anchor);
    view.residual = plan.residual + (page == 0 ? 0 : plan.first_residual + (page - 1) * plan.full_residual);
    return view;
}

__device__ __forceinline__ u8* section(const Plan& plan, const PageView& view, int which) {
    return (which < RESIDUAL_LOW ? view.anchor : view.residual) + plan.kinds[view.kind].begin[which];
}

// --- values -----------------------------------------------------------------------------------------------------
__device__ __forceinline__ i64 outer_offset(const Plan& plan, i64 outer) {
    i64 offset = 0;
#pragma unroll
    for (int axis = OUTER_AXES - 1; axis > 0; --axis) {
        const i64 size = plan.outer_size[axis], index = outer % size;
        offset += index * plan.outer_stride[axis];
        outer /= size;
    }
    return OUTER_AXES ? offset + outer * plan.outer_stride[0] : 0;
}

__device__ __forceinline__ i64 channel_offset(const Plan& plan, i64 channel) {
    i64 offset = 0;
    channel_t rest = (channel_t)channel;
#pragma unroll
    for (int axis = INNER_AXES - 1; axis > 0; --axis) {
        const channel_t size = (channel_t)plan.inner_size[axis], index = rest % size;
        offset += (i64)index * plan.inner_stride[axis];
        rest /= size;
    }
    return INNER_AXES ? offset + (i64)rest * plan.inner_stride[0] : 0;
}

// The value of a token; `column` is where the channel's (or pack's) values of token 0 would be.
__device__ __forceinline__ u8* value_address(const Plan& plan, u8* column, i64 token) {
#if SLOTS
    const i64 block = plan.blocks[token / SLOTS];
    return column + block * plan.block_stride + (token % SLOTS) * plan.token_stride;
#else
    return column + token * plan.token_stride;
#endif
}

// Values of successive tokens: without blocks, an addition each.
struct Rows {
    const Plan& plan;
    u8* column;
    i64 token;
    u8* next;
    __device__ __forceinline__ Rows(const Plan& given, u8* base, i64 first)
        : plan(given), column(base), token(first), next(SLOTS ? base : value_address(given, base, first)) {}
    __device__ __forceinline__ u8* step() {
        if (SLOTS) return value_address(plan, column, token++);
        u8* here = next;
        next += plan.token_stride;
        return here;
    }
};

// --- this block of threads ----------------------------------------------------------------------------------------
struct Tile {
    i64 outer, page, tile, group;
};

// Neighbouring blocks read neighbouring channels, then the next tokens.
__device__ __forceinline__ Tile this_tile(const Plan& plan, i64 pages) {
    const u32 groups = (u32)plan.groups, tiles = (u32)plan.tiles, all = (u32)pages;  // each is at most the number of blocks
    const u32 rows = blockIdx.x / groups, page_rows = rows / tiles;
    return {page_rows / all, page_rows % all, rows % tiles, blockIdx.x % groups};
}
