// watch.hpp: what a rank is at, whom it waits for, and whom it has waited for. All of it is this rank's own
// memory, written by the thread that makes the calls; a signal handler may look at any time. Host only.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "team/host/tally.hpp"
#include "team/signal.hpp"

namespace deep_ll {

class Watch {
   public:
    // The words of one wait, of all ranks; as Stopwatch knows them.
    struct Words {
        const std::uint64_t* first;
        std::uint64_t stride;  // bytes
        const std::uint8_t* mask;
    };
    // A phase, or a wait for a peer. `call`: of which.
    struct Event {
        const char* name;
        const char* call;
        std::int64_t start_ns;
        std::int64_t duration_ns;
        std::uint32_t epoch;
        std::int32_t peer;  // -1: a phase, or the call itself
    };
    // What is waited for, by Awaited::phase.
    static constexpr int kKinds = 8;
    using Kinds = const char* const (&)[kKinds];

    Watch(int rank, int num_ranks, Kinds kinds);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // Calls, phases, waits: they begin and end in this order.
    void begin(const char* call, std::uint32_t epoch);
    void end();
    void enter(const char* phase);
    void leave();
    void begin_wait(const Words& words, const Awaited& awaited, std::int64_t now_ns);
    void end_wait(std::uint32_t kind);
    void waited(std::uint32_t kind, int peer, std::int64_t start_ns, std::int64_t cost_ns);
    void moved(int peer, std::uint64_t bytes) { bytes_[static_cast<std::size_t>(peer)] += bytes; }

    // Keeps the last `most` events from now on.
    void record(std::size_t most);
    // The oldest first.
    std::vector<Event> events() const;
    // With those that are not kept any more.
    std::size_t num_events() const { return num_events_; }

    // From now on SIGUSR1 tells of this rank too, if nobody else handles that; `number`: of the buffer.
    void show(int number);
    void hide();
    // A line of text, without an end of line; how long it is. Safe in a signal handler.
    std::size_t describe(char* text, std::size_t size) const;

    int num_ranks() const { return num_ranks_; }
    const char* kind(int index) const { return kinds_[index]; }
    std::uint64_t num_waits(int kind) const { return num_waits_[kind]; }
    const Tally& tally(int kind, int peer) const { return tallies_[kind * num_ranks_ + peer]; }
    std::uint64_t bytes(int peer) const { return bytes_[static_cast<std::size_t>(peer)]; }

    // While it exists, a call is under way.
    class Call {
       public:
        Call(Watch& watch, const char* name, std::uint32_t epoch) : watch_(watch) {
            watch.begin(name, epoch);
        }
        ~Call() { watch_.end(); }
        Call(const Call&) = delete;
        Call& operator=(const Call&) = delete;

       private:
        Watch& watch_;
    };

   private:
    class Text;
    void tell_missing(Text& text) const;
    void keep(const Event& event);

    const int rank_, num_ranks_, pid_;
    const char* const* kinds_;
    int number_ = 0;

    // What a handler reads.
    std::atomic<const char*> call_{nullptr}, phase_{nullptr};
    std::atomic<bool> is_running_{false};
    std::atomic<std::uint32_t> epoch_{0};
    std::atomic<std::int64_t> since_ns_{0};             // when the call began, or the last one ended
    std::atomic<const std::uint64_t*> first_{nullptr};  // null: no wait
    std::atomic<std::uint64_t> stride_{0};
    std::atomic<const std::uint8_t*> mask_{nullptr};
    std::atomic<std::uint32_t> kind_{0}, awaited_{0};
    std::atomic<std::int64_t> wait_ns_{0};

    std::int64_t phase_ns_ = 0;
    std::uint64_t num_waits_[kKinds]{};
    struct Free {
        void operator()(Tally* tallies) const;
    };
    std::unique_ptr<Tally[], Free> tallies_;  // [kKinds][ranks]; only what is used is touched
    std::vector<std::uint64_t> bytes_;
    std::vector<Event> events_;
    std::size_t num_events_ = 0;  // so far
};

}  // namespace deep_ll
