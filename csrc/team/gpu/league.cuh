// league.cuh: the blocks of a launch run a list of phases. All blocks must fit onto the GPU at once: the
// first may wait for the others, and for peers.
#pragma once

#include "team/gpu/signal.cuh"
#include "team/league_args.hpp"
#include "team/phase.hpp"

DEEP_LL_TIER_BEGIN

extern __shared__ __align__(128) std::byte team_memory[];

// Solo phases run on all warps of the first block, wide ones on teams of kTeamWarps.
class League {
   public:
    using SoloTeam = GpuTeam<0>;
    using WideTeam = GpuTeam<kTeamWarps>;

    TEAM_FN explicit League(const LeagueArgs& args) : args_(args) {
        __shared__ std::uint32_t failed;
        if (threadIdx.x == 0) failed = load_relaxed_gpu(&args.state->failed);
        if constexpr (kHasBulk) {
            // The lane that inits them is the one that uses them.
            if (lane_of_warp() == 0)
                for (int slot = 0; slot < kRingSlots; ++slot) mbarrier_init(landed() + slot);
            seal_shared();
        }
        __syncthreads();
        failed_ = failed != 0;
    }

    template <class... Phases>
    TEAM_FN bool run(Phases... phases) {
        (one(phases), ...);
        return !failed_;
    }

   private:
    template <class F>
    TEAM_FN void one(const Solo<F>& phase) {
        if (failed_) return;
        if (after_wide_) meet();
        after_wide_ = false;
        if (failed_ || !is_first()) return;
        const SoloTeam team(0, 1, scratch(0, num_teams()));
        const bool go_on = phase.run(team);
        team.sync();  // the next phase may be solo too
        if (go_on) return;
        team.once([&] { give_up(); });
        failed_ = true;
    }

    template <class F>
    TEAM_FN void one(const Wide<F>& phase) {
        if (failed_) return;
        meet();
        if (failed_) return;
        const int mine = static_cast<int>(threadIdx.x) / (kTeamWarps * kWarpLanes);
        const WideTeam team(static_cast<int>(blockIdx.x) * num_teams() + mine,
                            static_cast<int>(gridDim.x) * num_teams(), scratch(mine, 1));
        team.bulk.loads = loads_;
        if (!phase.run(team)) stop_all();
        loads_ = team.bulk.loads;
        after_wide_ = true;
    }

    TEAM_FN static bool is_first() { return blockIdx.x == 0; }
    TEAM_FN static int num_teams() { return static_cast<int>(blockDim.x) / (kTeamWarps * kWarpLanes); }

    // What `arrived` is made of. The high bit turns when the last block comes, whatever their number.
    static constexpr std::uint32_t kTurn = 1u << 31, kBlock = 2, kStopped = 1;

    // All blocks have come, and see what the others wrote before.
    TEAM_FN void meet() {
        __shared__ std::uint32_t failed;
        LeagueState& state = *args_.state;
        __syncthreads();
        if (threadIdx.x == 0) {
            const std::uint32_t before =
                add_release_gpu(&state.arrived, is_first() ? kTurn - kBlock * (gridDim.x - 1) : kBlock);
            std::uint32_t stop = 0;
            while (stop == 0 && ((load_relaxed_gpu(&state.arrived) ^ before) & kTurn) == 0)
                stop = load_relaxed_gpu(&state.failed);
            stop |= load_acquire_gpu(&state.arrived) & kStopped;
            failed = stop;
        }
        __syncthreads();
        failed_ = failed != 0;
    }

    // One lane has found why the next phase must not run. The others hear of it when they meet: its block
    // comes there after this.
    TEAM_FN void stop_all() {
        add_release_gpu(&args_.state->arrived, kStopped);
        give_up();
    }

    TEAM_FN void give_up() {
        store_release_sys(args_.failed, 1u);
        store_release_gpu(&args_.state->failed, 1u);
    }

    // The memory of `count` neighbouring teams from `first` on, as one.
    TEAM_FN Scratch scratch(int first, int count) const {
        __shared__ int found[kMaxWarps];
        const std::uint32_t bytes = args_.ring_bytes + args_.message_bytes;
        return {team_memory + first * bytes, args_.ring_bytes, count * bytes,
                landed() - (threadIdx.x / kWarpLanes % kTeamWarps) * kRingSlots, found + first};
    }
    // This warp's mbarriers.
    TEAM_FN static std::uint64_t* landed() {
        __shared__ std::uint64_t barriers[kMaxWarps * kRingSlots];
        return barriers + threadIdx.x / kWarpLanes * kRingSlots;
    }

    const LeagueArgs& args_;
    std::uint32_t loads_ = 0;  // by this warp so far: the state of its mbarriers
    bool after_wide_ = false;
    bool failed_ = false;
};

DEEP_LL_TIER_END
