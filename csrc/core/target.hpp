// target.hpp: which compiler reads this, and for which machine. The only place that asks.
// A tier (a CPU level, or the GPU kernels of one row size) compiles the same text into its own namespace, so
// that the linker can never hand code for a newer processor to an older one. Types that cross tiers live in
// deep_ll itself.
#pragma once

#include <cstddef>
#include <cstdint>

// WORD_FN: arithmetic on words, for anybody. TEAM_FN: what a team does, on its own machine only.
#if defined(__CUDACC__)
#define WORD_FN __host__ __device__ __forceinline__
#define TEAM_FN __device__ __forceinline__
#else
#define WORD_FN inline __attribute__((always_inline))
#define TEAM_FN inline __attribute__((always_inline))
#endif

namespace deep_ll {

// Whether kernels may have peers behind a link, and whether what goes there waits in this rank's own heap
// for a phase that ships it. On GPUs: those that are compiled against NVSHMEM.
#if !defined(__CUDACC__)
constexpr bool kCanLink = true, kShipsLater = false;
#elif defined(DEEP_LL_NETWORK)
constexpr bool kCanLink = true, kShipsLater = true;
#else
constexpr bool kCanLink = false, kShipsLater = false;
#endif

// A pointer that is to memory of a GPU or of the host, never to a block's own: accesses need not find out.
template <class T>
WORD_FN T* global_memory(T* pointer) {
#if defined(__CUDA_ARCH__)
    __builtin_assume(__isGlobal(pointer));
#endif
    return pointer;
}

}  // namespace deep_ll

#ifndef DEEP_LL_TIER
#define DEEP_LL_TIER common
#endif

#define DEEP_LL_TIER_BEGIN \
    namespace deep_ll {    \
    inline namespace DEEP_LL_TIER {
#define DEEP_LL_TIER_END \
    }                    \
    }
