// kernels.hpp: the kernels of one CPU level, as a table.
#pragma once

#include "ep/args.hpp"
#include "team/host/league.hpp"

namespace deep_ll {

// Each runs wide phases on the first `num_teams` teams and returns whether it got through; else the verdict
// says why not.
struct Kernels {
    const char* level;
    bool (*dispatch_send)(Pool&, int num_teams, const DispatchArgs&);
    bool (*dispatch_receive)(Pool&, int num_teams, const DispatchArgs&);
    bool (*combine_send)(Pool&, int num_teams, const CombineArgs&);
    bool (*combine_receive)(Pool&, int num_teams, const CombineArgs&);
    bool (*await_credit)(Pool&, const Common&);
    bool (*meet)(Pool&, const Common&);
};

}  // namespace deep_ll
