// args.hpp: what a kernel is given: one struct by value, filled by the bindings.
#pragma once

#include "ep/window.hpp"
#include "team/copy.hpp"
#include "team/launch.hpp"

namespace deep_ll {

// Where a rank is in the order of operations. Epochs advance in here, never in the caller, so that a recorded
// sequence of calls can be replayed.
struct Progress {
    std::uint32_t dispatched;     // epoch of the last dispatch that was started
    std::uint32_t combined;       // of the last combine that was started
    std::uint32_t consumed;       // of the last combine whose rows were all read
    std::uint32_t told_consumed;  // what peers were told of that
};

enum class Phase : std::uint32_t { none = 0, counts = 1, rows = 2, credit = 3, outputs = 4 };

// A peer that speaks of another exchange than this rank.
struct Disagreement {
    int peer;  // -1: none
    Greeting theirs;
    std::uint32_t word;  // of a combine: its value
};

struct Common {
    Shape shape;
    Window window;
    PeerMap peers;
    Progress* progress;
    WaitPolicy policy;
    WaitReport* report;
    Disagreement* disagreement;
    Phase* phase;  // the last one that was waited in
    Ledger ledger;
    Store store;
    int num_teams;        // of the phases that move rows
    std::uint32_t epoch;  // of the receive phases: which operation is finished
};

struct DispatchArgs : Common {
    const bf16* x = nullptr;  // [num_tokens, hidden]
    int num_tokens = 0;
    std::int32_t* recv_count = nullptr;    // [num_local]
    std::int64_t* layout_range = nullptr;  // [num_local, num_ranks], begin << 32 | count
    bool columns = true;                   // scales are transposed; else they stay in the labels
    std::int32_t* stats = nullptr;         // [num_local] or null: grows by recv_count
};

struct CombineArgs : Common {
    const bf16* x = nullptr;                // [num_local, max_rows, hidden]; null when pulled
    const std::int32_t* choices = nullptr;  // [num_tokens, num_topk] experts to add up, -1: none
    const float* weights = nullptr;         // [num_tokens, num_topk]
    bf16* out = nullptr;                    // [num_tokens, hidden]
    int num_tokens = 0;
    std::uint32_t round = 0;  // the dispatch that is answered
    bool pulled = false;      // zero copy: peers read the outputs in this rank's heap
};

// The kernels of one CPU level. Each returns whether it got through; else the report or the disagreement says
// why not.
struct Kernels {
    const char* level;
    bool (*dispatch_send)(Pool&, const DispatchArgs&);
    bool (*dispatch_receive)(Pool&, const DispatchArgs&);
    bool (*combine_send)(Pool&, const CombineArgs&);
    bool (*combine_receive)(Pool&, const CombineArgs&);
    bool (*await_credit)(Pool&, const Common&);
};

}  // namespace deep_ll
