// tiers.hpp: which CPU levels were compiled, and which one this machine can run.
#pragma once

#include <string>
#include <vector>

#include "ep/kernels.hpp"

namespace deep_ll {

// The levels this machine can run, best first. Never empty: otherwise it throws and says what the machine
// lacks.
std::vector<const Kernels*> runnable_levels();

// The best level, or the one named ("v2", "v3", "v4", "base", "native").
const Kernels& level_named(const std::string& name);

}  // namespace deep_ll
