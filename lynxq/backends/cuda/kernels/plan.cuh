// What a launch is told: the compile-time parameters, and the one argument of every kernel.
//
// Compile-time (a preamble of #defines, one cubin for each combination):
//   VALUE_TYPE      element type of the encoded tensor: 0 float32, 1 float16, 2 bfloat16
//   ARRAY_TYPE      element type of the array that is read or written (a decode may convert)
//   CHANNEL_AXIS    1: runs lie along channels, 0: along tokens
//   RANGE CHUNK PAGE, ANCHOR_BITS RESIDUAL_BITS as in Params; MEAN_CENTER 0/1
//   METADATA        0: centre and scale follow from the range; 1, 2, 4: their stored bytes
//   VEC             channels of a thread: 16 bytes' worth, or 1 where alignment or counts do not allow more
//   LANES           threads along channels;  STRIPS: strips of eight tokens in a block;  DEPTH: strips of a thread
//   RUN_LANES       lanes that share a run along channels, a power of two
//   CELL_BITS       log2 of the cells of the threshold grid over [0, 1); 0: binary search
//   OUTER_AXES INNER_AXES   axes before and after the token axis that could not be merged
//   SLOTS           tokens of a cache block; 0: not paged
//   BYTEWISE        1: pointers are not aligned to their elements
//   WIDE            1: channel numbers need 64 bits
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

#if WIDE
typedef u64 channel_t;
#else
typedef u32 channel_t;
#endif

#define STRIP 8  // tokens of a strip: every bit plane of a strip is whole bytes
#define MAX_PLAN_AXES 16
#define SECTIONS 9
enum Section { LO, HI, MU, SIGMA, SINKS, ANCHOR_LOW, ANCHOR_HIGH, RESIDUAL_LOW, RESIDUAL_HIGH };

// Sections of a page, in bytes from the page's beginning; `end` to `next` is filled with zeros.
struct PageKind {
    i64 begin[SECTIONS], end[SECTIONS], next[SECTIONS];
};

struct Plan {
    u8* values;          // the array, at its first element
    u8* anchor;          // the streams
    u8* residual;
    const u8* tables;    // see codes.cuh
    const i32* blocks;   // block table of a paged cache
    u64* report;         // count and first index of the non-finite values
    i64 outer, channels, head_dim, tokens, length, pages, sinks;
    i64 tiles, groups;   // blocks of threads along the tokens of a page, and along channels
    i64 token_stride, block_stride;  // bytes
    i64 first_anchor, full_anchor, first_residual, full_residual;  // bytes of page 0 and of a full page
    i64 outer_size[MAX_PLAN_AXES], outer_stride[MAX_PLAN_AXES];
    i64 inner_size[MAX_PLAN_AXES], inner_stride[MAX_PLAN_AXES];
    PageKind kinds[3];   // page 0, pages in the middle, the last page
};
