// exchange.hpp: one rank's end of the ep family, as Python holds it. Integers in, nothing decided here.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ep/kernels.hpp"

namespace deep_ll {

// How a call is to be waited for and stored.
struct CallOptions {
    std::int64_t timeout_ns;  // 0: none
    bool streaming;
    bool small;               // not worth waking this rank's other threads
    bool columns = true;      // received scales go into columns
    std::uint64_t costs = 0;  // int64 [ranks] that grows by what each was waited for, ns; 0: none
};

// The tensors of a dispatch, by address.
struct Batch {
    std::uint64_t x;
    int num_tokens;
    std::uint64_t recv_count;
    std::uint64_t layout_range;
    std::uint32_t slot;
    std::uint64_t indices = 0;  // to be checked and copied into the ledger; 0: it has them
    bool wide = false;          // int64, else int32
};

// Which combine: the slot of the dispatch that it answers, its own, and where its rows are.
struct Answer {
    std::uint32_t recv_slot;
    std::uint32_t combine_slot;
    bool pulled;
    bool logfmt = false;
    std::uint64_t layout_range = 0;  // as the dispatch left it
};

// The tensors of a combine's receiving half, by address.
struct Sum {
    std::uint64_t choices;
    std::uint64_t weights;
    std::uint64_t out;
    int num_tokens;
    std::uint64_t indices = 0;  // on a GPU: the caller's, to be checked and copied to `choices`
    bool wide = false;
};

class Exchange {
   public:
    Exchange(std::vector<std::uint64_t> bases,
             int rank,
             std::uint64_t heap_bytes,
             int num_threads,
             bool crowded,
             const Kernels& kernels);

    // Peers with linked[peer] != 0 are reached by `link`, which must outlive this; their bases are of memory
    // of this rank's own, as large as a heap.
    void use_link(Link& link, std::vector<std::uint8_t> linked);
    // From now on ranks that do not come in time are left out: a byte each at `mask`, padded to 16.
    void use_mask(std::uint64_t mask) { mask_ = mask; }

    // A rank that began anew: its heap, or behind the link memory of this rank's own.
    void replace(int rank, std::uint64_t base, bool linked);
    // As if this rank had made the calls of the ranks that it joins.
    void resume(const Progress& progress) { progress_ = progress; }

    bool dispatch_send(const Shape&, const CallOptions&, std::uint64_t ledger, const Batch&);
    bool dispatch_receive(
        const Shape&, const CallOptions&, std::uint64_t ledger, const Batch&, std::uint64_t stats);
    bool combine_send(const Shape&, const CallOptions&, std::uint64_t ledger, const Answer&, std::uint64_t x);
    bool combine_receive(const Shape&, const CallOptions&, std::uint64_t ledger, const Answer&, const Sum&);
    bool await_credit(const Shape&, const CallOptions&, std::uint32_t combine_slot);
    // Waits until all ranks that are not left out have called this as often.
    bool meet(const Shape&, const CallOptions&);

    const Progress& progress() const { return progress_; }
    // How the last call ended. Its bad choice: of a dispatch that was not sent.
    const Verdict& verdict() const { return verdict_; }
    // An exception ended a call while it waited: peers wait for what will not come. Final.
    bool interrupted() const { return interrupted_; }
    void set_interrupted() { interrupted_ = true; }
    Watch& watch() { return watch_; }
    const Window& window() const { return window_; }
    const Kernels& kernels() const { return kernels_; }
    int num_threads() const { return pool_.num_teams(); }

   private:
    Common common(const Shape& shape, const CallOptions& options, std::uint64_t ledger);
    void count_sent(const Common& args);
    void count_returned(const CombineArgs& args);
    int num_teams(const CallOptions& options) const { return options.small ? 1 : pool_.num_teams(); }

    std::vector<std::uint64_t> bases_;
    Link* link_ = nullptr;
    std::vector<std::uint8_t> linked_;
    std::uint64_t mask_ = 0;
    int rank_;
    bool crowded_;
    Window window_;
    const Kernels& kernels_;
    Pool pool_;
    Watch watch_;
    Progress progress_{};
    Verdict verdict_{};
    bool interrupted_ = false;
};

// Asks Python whether a signal (Ctrl-C) wants the call to end.
bool python_interrupts();

}  // namespace deep_ll
