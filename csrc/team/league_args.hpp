// league_args.hpp: how the host and the blocks of a launch know of each other.
#pragma once

#include "core/target.hpp"

namespace deep_ll {

// The meeting point of the blocks, in this GPU's memory; for all launches of a buffer, one after the other.
struct LeagueState {
    std::uint32_t arrived;  // league.cuh
    std::uint32_t failed;   // 1: a wait was given up, nothing runs any more
};

// What a launch tells its league.
struct LeagueArgs {
    LeagueState* state;
    std::uint32_t* failed;        // the same, where the host can read it
    std::uint32_t ring_bytes;     // of each team
    std::uint32_t message_bytes;  // of each team
};

constexpr int kTeamWarps = 4;  // of a wide phase
constexpr int kMaxWarps = 16;  // of a block

}  // namespace deep_ll
