// phase.hpp: what a league runs: a list of phases.
#pragma once

#include "core/target.hpp"

DEEP_LL_TIER_BEGIN

// A phase of one team: small things, and waits. Returns whether the next phase may run.
template <class F>
struct Solo {
    F run;
    const char* name = "";
};
// A phase that all teams share. A team returns false on one lane at most, and one team at most: it has found
// why the next phase must not run.
template <class F>
struct Wide {
    F run;
    const char* name = "";
};
template <class F>
TEAM_FN Solo<F> solo(F run, const char* name = "") {
    return {run, name};
}
template <class F>
TEAM_FN Wide<F> wide(F run, const char* name = "") {
    return {run, name};
}

DEEP_LL_TIER_END
