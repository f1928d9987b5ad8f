// league.hpp: a league of teams runs a list of phases. The line between two phases is the only order between
// teams.
#pragma once

#include <atomic>
#include <memory>

#include "team/host/faults.hpp"
#include "team/host/host_team.hpp"
#include "team/host/watch.hpp"
#include "team/phase.hpp"

namespace deep_ll {

// The threads of one rank. One call at a time.
class Pool {
   public:
    explicit Pool(int num_teams);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_teams() const;

    // Calls phase(context, team) on the first `num_teams` teams and waits for all of them.
    using PhaseFn = void (*)(void* context, const HostTeamState& team);
    void run(int num_teams, PhaseFn phase, void* context);

    // Every team's own memory for one message.
    void reserve_scratch(std::uint64_t bytes);

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace deep_ll

DEEP_LL_TIER_BEGIN

// Runs phases one after the other, the wide ones on `num_teams` teams. `watch`: null, or who is told.
class League {
   public:
    League(Pool& pool, int num_teams, Watch* watch = nullptr)
        : pool_(pool), num_teams_(num_teams), watch_(watch) {}

    template <class First, class... Rest>
    bool run(First first, Rest... rest) {
        if (watch_ != nullptr) watch_->enter(first.name);
        const bool go_on = one(first);
        if (watch_ != nullptr) watch_->leave();
        if constexpr (sizeof...(rest) == 0)
            return go_on;
        else
            return go_on && run(rest...);
    }

   private:
    template <class F>
    bool one(Solo<F>& phase) {
        fault_point_of(phase.name);
        bool go_on = true;
        auto on_team = [&](const HostTeam& team) { go_on = phase.run(team); };
        on_teams(1, on_team);
        return go_on;
    }
    template <class F>
    bool one(Wide<F>& phase) {
        std::atomic<bool> go_on{true};
        auto on_team = [&](const HostTeam& team) {
            fault_point_of(phase.name);
            if (!phase.run(team)) go_on.store(false, std::memory_order_relaxed);
        };
        on_teams(num_teams_, on_team);
        return go_on.load(std::memory_order_relaxed);
    }
    template <class F>
    void on_teams(int num_teams, F& phase) {
        pool_.run(
            num_teams,
            [](void* context, const HostTeamState& state) { (*static_cast<F*>(context))(HostTeam(state)); },
            &phase);
    }

    Pool& pool_;
    const int num_teams_;
    Watch* const watch_;
};

DEEP_LL_TIER_END
