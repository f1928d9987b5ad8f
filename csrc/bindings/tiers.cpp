// tiers.cpp: setup.py says by DEEP_LL_HAVE_* which levels it compiled.
#include "bindings/tiers.hpp"

#include <stdexcept>

namespace deep_ll {

#if DEEP_LL_HAVE_NATIVE
namespace native {
const Kernels& kernels();
}
#endif
#if DEEP_LL_HAVE_V4
namespace v4 {
const Kernels& kernels();
}
#endif
#if DEEP_LL_HAVE_V3
namespace v3 {
const Kernels& kernels();
}
#endif
#if DEEP_LL_HAVE_V2
namespace v2 {
const Kernels& kernels();
}
#endif
#if DEEP_LL_HAVE_BASE
namespace base {
const Kernels& kernels();
}
#endif

std::vector<const Kernels*> runnable_levels() {
    std::vector<const Kernels*> levels;
#if DEEP_LL_HAVE_NATIVE
    levels.push_back(&native::kernels());
#endif
#if DEEP_LL_HAVE_V4
    if (__builtin_cpu_supports("x86-64-v4")) levels.push_back(&v4::kernels());
#endif
#if DEEP_LL_HAVE_V3
    if (__builtin_cpu_supports("x86-64-v3")) levels.push_back(&v3::kernels());
#endif
#if DEEP_LL_HAVE_V2
    if (__builtin_cpu_supports("x86-64-v2")) levels.push_back(&v2::kernels());
#endif
#if DEEP_LL_HAVE_BASE
    levels.push_back(&base::kernels());
#endif
    if (levels.empty())
        throw std::runtime_error("deep_ll needs a processor of level x86-64-v2 (SSE4.2, POPCNT) at least");
    return levels;
}

const Kernels& level_named(const std::string& name) {
    std::string known;
    const auto levels = runnable_levels();
    if (name.empty()) return *levels.front();
    for (const Kernels* level : levels) {
        if (name == level->level) return *level;
        known += std::string(known.empty() ? "" : ", ") + level->level;
    }
    throw std::invalid_argument("CPU level '" + name +
                                "' is not among those that this machine can run: " + known);
}

}  // namespace deep_ll
