// launch.hpp: the one parameter of each kernel on a GPU, by value; and how large a launch is.
#pragma once

#include "ep/args.hpp"
#include "team/league_args.hpp"

namespace deep_ll {

// Which halves of an operation a launch runs; of `credit`, that ranks meet instead.
constexpr std::uint32_t kSend = 1, kReceive = 2, kMeet = 4;

struct DispatchLaunch {
    DispatchArgs args;
    Choices choices;
    LeagueArgs league;
    std::uint32_t halves;
};

struct CombineLaunch {
    CombineArgs args;
    Choices choices;
    LeagueArgs league;
    std::uint32_t halves;
};

}  // namespace deep_ll
