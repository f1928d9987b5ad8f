// args.hpp: what a kernel is given: one struct by value, filled by the bindings.
#pragma once

#include "ep/choices.hpp"
#include "ep/window.hpp"
#include "team/verbs.hpp"

namespace deep_ll {

constexpr std::uint32_t kSlots = 2;

// Where a rank is in the order of operations, in memory that kernels advance: a recorded sequence of calls
// can be replayed. Only slots are the caller's: the addresses of what it reads are recorded too.
struct Progress {
    std::uint32_t dispatched;        // epoch of the last dispatch that was started
    std::uint32_t combined;          // of the last combine that was sent
    std::uint32_t consumed;          // of the last combine whose rows were all read
    std::uint32_t told_consumed;     // what peers were told of that
    std::uint32_t received[kSlots];  // of the last dispatch into each slot of recv
    std::uint32_t returned[kSlots];  // of the last combine into each slot of combine
    std::uint32_t met;               // how often this rank has met the others
    std::uint32_t blamed;            // 0 until nonsense of a peer was found; nothing runs after that
};

// What is waited for: the `phase` of a WaitReport; and what is read of peers without a wait.
enum class Phase : std::uint32_t {
    none = 0,
    counts = 1,
    rows = 2,
    credit = 3,
    outputs = 4,
    grants = 5,
    meeting = 6,
    labels = 7
};

// A peer that speaks of another exchange than this rank.
struct Disagreement {
    std::int32_t peer;  // -1: none
    Phase phase;  // counts: of a dispatch, by its greeting; outputs: of a combine, by the value of its signal
    Greeting theirs, ours;
    std::uint32_t their_value, our_value;
};

// What a peer left in this rank's heap and cannot be true. (An epoch that cannot be: WaitOutcome::beyond.)
struct Nonsense {
    enum class Of : std::uint32_t { nothing = 0, count = 1, label = 2, grant = 3 };
    Of of;
    std::int32_t peer;
    Phase phase;
    std::int32_t place;   // a count or grant: the expert; a label: the row of its local expert
    std::uint64_t found;  // a label: Origin::word()
    std::uint64_t bound;  // the most; a label: an Origin of the right source and dispatch, else of bounds
};

// How a call ended, where its caller can read it.
struct Verdict {
    WaitReport wait;
    Disagreement disagreement;
    Nonsense nonsense;
    ChoiceCheck bad_choice;
    std::uint32_t has_bad_choice;  // written after it
};

struct Common {
    Shape shape;
    Window window;
    PeerMap peers;
    Progress* progress;
    WaitPolicy policy;
    Verdict* verdict;
    Ledger ledger;
    Store store;
    std::int64_t* layout_range;  // of the dispatch, [num_local, num_ranks]: begin << 32 | count
    std::uint32_t recv_slot;     // of the dispatch
    std::uint32_t combine_slot;  // of the combine

    TEAM_FN std::uint64_t recv() const { return window.recv.slot(recv_slot); }
    TEAM_FN std::uint64_t outgoing() const { return window.outgoing(recv_slot); }
};

struct DispatchArgs : Common {
    const bf16* x = nullptr;  // [num_tokens, hidden]
    int num_tokens = 0;
    std::int32_t* recv_count = nullptr;  // [num_local]
    bool columns = true;                 // scales are transposed; else they stay in the labels
    std::int32_t* stats = nullptr;       // [num_local] or null: grows by recv_count
};

struct CombineArgs : Common {
    const bf16* x = nullptr;          // [num_local, max_rows, hidden]; null when pulled
    std::int32_t* choices = nullptr;  // [num_tokens, num_topk] experts to add up, negative: none
    const float* weights = nullptr;   // [num_tokens, num_topk]
    bf16* out = nullptr;              // [num_tokens, hidden]
    int num_tokens = 0;
    bool pulled = false;  // zero copy: peers read the outputs in this rank's heap
    bool logfmt = false;  // pushed rows travel in LogFMT
};

}  // namespace deep_ll
