// launch.hpp: a league of teams runs a list of phases. The line between two phases is the only order between teams.
#pragma once

#include <memory>

#include "team/team.hpp"

namespace deep_ll {

// The threads of one rank. One call at a time.
class Pool {
   public:
    explicit Pool(int num_teams);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_teams() const;

    // Calls phase(context, team) on every team and waits for all of them.
    using PhaseFn = void (*)(void* context, const HostTeamState& team);
    void run(PhaseFn phase, void* context);

    // Every team's own memory for one message.
    void reserve_scratch(std::uint64_t bytes);

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace deep_ll

DEEP_LL_TIER_BEGIN

// Runs phases one after the other. A phase returns whether the next one may run; the teams' answers are joined.
class League {
   public:
    explicit League(Pool& pool) : pool_(pool) {}

    template <class Phase>
    bool run(Phase phase) {
        struct Context {
            Phase& phase;
            std::atomic<bool> go_on{true};
        } context{phase};
        pool_.run(
            [](void* opaque, const HostTeamState& state) {
                auto& in = *static_cast<Context*>(opaque);
                if (!in.phase(HostTeam(state))) in.go_on.store(false, std::memory_order_relaxed);
            },
            &context);
        return context.go_on.load(std::memory_order_relaxed);
    }

    template <class First, class... Rest>
    bool run(First first, Rest... rest) {
        return run(first) && run(rest...);
    }

   private:
    Pool& pool_;
};

DEEP_LL_TIER_END
