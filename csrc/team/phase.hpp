// phase.hpp: what a league runs: a list of phases.
#pragma once

#include "core/target.hpp"

DEEP_LL_TIER_BEGIN

// A phase of one team: small things, and waits. Returns whether the next phase may run.
template <class F>
struct Solo {
    F run;
};
// A phase that all teams share.
template <class F>
struct Wide {
    F run;
};
template <class F>
TEAM_FN Solo<F> solo(F run) {
    return {run};
}
template <class F>
TEAM_FN Wide<F> wide(F run) {
    return {run};
}

DEEP_LL_TIER_END
