// host_team.hpp: a team on a CPU is one thread that owns all lanes; loops inside the verbs are vectorised.
#pragma once

#include "core/check.hpp"
#include "core/target.hpp"

namespace deep_ll {

// What a league gives each of its teams: who it is, and memory of its own to build a message in.
struct HostTeamState {
    int index;
    int count;
    std::byte* scratch;
    std::uint64_t scratch_bytes;
};

}  // namespace deep_ll

DEEP_LL_TIER_BEGIN

// fan(n, f): f(k) for k < n side by side; any lane may then ask for any k.
template <class T>
struct Fan {
    static constexpr int kWidth = 32;
    T values[kWidth];
    TEAM_FN T at(int k) const { return values[k]; }
};

class HostTeam {
   public:
    explicit HostTeam(const HostTeamState& state) : state_(state) {}

    TEAM_FN int index() const { return state_.index; }
    TEAM_FN int count() const { return state_.count; }
    TEAM_FN void sync() const {}

    // One lane runs f, every lane gets its result.
    template <class F>
    TEAM_FN auto once(F f) const {
        return f();
    }

    template <class F>
    TEAM_FN auto fan(int n, F f) const {
        Fan<decltype(f(0))> all;
        DEEP_LL_INVARIANT(n <= all.kWidth, n);
        for (int k = 0; k < n; ++k) all.values[k] = f(k);
        return all;
    }

    // f(i) for i < n, spread over lanes in any order; a lane that owns i owns it in every such loop.
    template <class F>
    TEAM_FN void lanes(int n, F f) const {
        for (int i = 0; i < n; ++i) f(i);
    }

    // f(i) for this team's share of n items; the league's teams share all of them.
    template <class F>
    TEAM_FN void share(int n, F f) const {
        for (int i = state_.index; i < n; i += state_.count) f(i);
    }

    TEAM_FN std::byte* stage(std::uint64_t bytes) const {
        DEEP_LL_INVARIANT(bytes <= state_.scratch_bytes, bytes);
        return state_.scratch;
    }

   private:
    HostTeamState state_;
};

DEEP_LL_TIER_END
