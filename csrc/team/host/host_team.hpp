// host_team.hpp: a team on a CPU is one thread that owns all lanes; loops inside the verbs are vectorised.
#pragma once

#include "core/check.hpp"
#include "team/host/faults.hpp"
#include "team/team.hpp"

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

template <class T>
struct Fan {
    T values[kMaxFan];
    TEAM_FN T at(int k) const { return values[k]; }
    TEAM_FN T mine(int k) const { return values[k]; }
};

class HostTeam {
   public:
    explicit HostTeam(const HostTeamState& state) : state_(state) {}

    TEAM_FN int index() const { return state_.index; }
    TEAM_FN int count() const { return state_.count; }
    TEAM_FN void sync() const {}

    template <class F>
    TEAM_FN void once(F f) const {
        f();
    }

    template <class F>
    TEAM_FN int first(int n, F f) const {
        for (int i = 0; i < n; ++i)
            if (f(i)) return i;
        return -1;
    }

    template <class F>
    TEAM_FN auto fan(int n, F f) const {
        Fan<decltype(f(0))> all;
        DEEP_LL_INVARIANT(n <= kMaxFan, n);
        for (int k = 0; k < n; ++k) all.values[k] = f(k);
        return all;
    }

    template <class F>
    TEAM_FN void lanes(int n, F f) const {
        for (int i = 0; i < n; ++i) f(i);
    }

    template <class F>
    TEAM_FN void share(int n, F f) const {
        for (int i = state_.index; i < n; i += state_.count) {
            fault_point("row");
            f(i);
        }
    }

    template <class F>
    TEAM_FN void share_blocks(int num_groups, const std::uint32_t* counts, int block, F f) const {
        for (int group = 0; group < num_groups; ++group) {
            const int rows = static_cast<int>(counts[group]);
            for (int at = state_.index * block; at < rows; at += state_.count * block) {
                fault_point("row");
                f(group, at, rows - at < block ? rows - at : block);
            }
        }
    }

    TEAM_FN std::byte* stage(std::uint64_t bytes) const {
        DEEP_LL_INVARIANT(bytes <= state_.scratch_bytes, bytes);
        return state_.scratch;
    }

   private:
    HostTeamState state_;
};

DEEP_LL_TIER_END
