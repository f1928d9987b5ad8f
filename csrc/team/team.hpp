// team.hpp: who executes. A kernel is a function template over its team and is read by both compilers.
//
// The contract (csrc/README.md has it in full):
//   index() count()      which team of the league am I; never lanes, threads, warps or blocks
//   sync()               all lanes of this team; memory they wrote is visible to each other
//   once(f)              one lane runs f; others go on
//   first(n, f)          the lowest i < n for which f(i) is true, else -1; every lane gets it
//   fan(n, f)            f(k) for k < n <= 32 side by side, without effects; .at(k): what any k gave,
//                        .mine(k): inside another fan, what the same k gave
//   lanes(n, f)          a loop spread over lanes; a lane that owns i owns it in every such loop
//   share(n, f)          this team's share of n items
//   share_blocks(groups, counts, block, f)   this team's share of counts[g] rows of each group g, in blocks:
//                        f(g, first row, number of rows)
//   stage(bytes)         this team's own memory for one message
// and the verbs (verbs.hpp). A team never waits for a sibling: the end of a phase is the only order between
// teams (host/league.hpp, gpu/league.cuh).
#pragma once

#include "team/signal.hpp"
#include "team/verbs.hpp"
