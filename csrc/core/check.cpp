// check.cpp: the end of the road for a broken invariant.
#include "core/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace deep_ll {

void invariant_broken(const char* what, std::uint64_t value, const char* file, int line) {
    std::fprintf(
        stderr,
        "deep_ll: broken invariant: %s (value %llu) at %s:%d. This is a bug of deep_ll, please report it.\n",
        what, static_cast<unsigned long long>(value), file, line);
    std::abort();
}

}  // namespace deep_ll
