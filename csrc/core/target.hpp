// target.hpp: which compiler reads this, and for which CPU level. The only place that asks.
// A CPU level ("tier") compiles the same kernels into its own namespace, so that the linker can never
// hand code for a newer processor to an older one. Types that cross tiers live in deep_ll itself.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define TEAM_FN __host__ __device__ __forceinline__
#else
#define TEAM_FN inline __attribute__((always_inline))
#endif

#ifndef DEEP_LL_TIER
#define DEEP_LL_TIER common
#endif

#define DEEP_LL_TIER_BEGIN \
    namespace deep_ll {    \
    inline namespace DEEP_LL_TIER {
#define DEEP_LL_TIER_END \
    }                    \
    }
