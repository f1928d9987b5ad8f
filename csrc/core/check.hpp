// check.hpp: invariants. A broken one is a bug of deep_ll, never of its user: users' input is checked in
// Python.
#pragma once

#include "core/target.hpp"

namespace deep_ll {

// Prints what is broken and aborts: going on would write somewhere it must not.
[[noreturn]] void invariant_broken(const char* what, std::uint64_t value, const char* file, int line);

}  // namespace deep_ll

#define DEEP_LL_INVARIANT(condition, value)                                                                 \
    do {                                                                                                    \
        if (!(condition)) [[unlikely]]                                                                      \
            ::deep_ll::invariant_broken(#condition, static_cast<std::uint64_t>(value), __FILE__, __LINE__); \
    } while (false)
