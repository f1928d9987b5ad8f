// team.hpp: who executes. A kernel is a function template over its team and is read by both compilers.
//
// The contract (csrc/README.md has it in full):
//   index() count()      which team of the league am I; never lanes, threads, warps or blocks
//   sync()               all lanes of this team; memory they wrote is visible to each other
//   once(f)              one lane runs f, every lane gets its result
//   fan(n, f), .at(k)    f(k) for k < n <= 32 side by side
//   lanes(n, f)          a loop spread over lanes
//   share(n, f)          this team's share of n items
//   stage(bytes)         this team's own memory for one message
// and the verbs: copy.hpp, quantize.hpp, reduce.hpp, rearrange.hpp, signal.hpp.
// A team never waits for a sibling: the end of a phase (launch.hpp) is the only order between teams.
#pragma once

#include "team/host_team.hpp"
