// gpu_team.cuh: a team on a GPU is some warps of one block, or all of them.
#pragma once

#include "team/gpu/memory.cuh"
#include "team/team.hpp"

DEEP_LL_TIER_BEGIN

constexpr unsigned kAllLanes = ~0u;
constexpr int kWarpLanes = 32;

TEAM_FN int lane_of_warp() {
    return static_cast<int>(threadIdx.x % kWarpLanes);
}

// One value a lane; warps of a team hold the same.
template <class T>
struct Fan {
    T own;
    TEAM_FN T at(int k) const { return shuffle(own, k); }  // all lanes of the warp ask
    TEAM_FN T mine(int) const { return own; }

   private:
    template <class U>
    TEAM_FN static U shuffle(U value, int k) {
        return __shfl_sync(kAllLanes, value, k);
    }
    template <class U>
    TEAM_FN static U* shuffle(U* value, int k) {
        return reinterpret_cast<U*>(__shfl_sync(kAllLanes, reinterpret_cast<std::uint64_t>(value), k));
    }
};

// A team's shared memory: a ring that rows go through, then room for one message.
struct Scratch {
    std::byte* base;
    std::uint32_t ring_bytes;
    std::uint32_t bytes;    // with the message
    std::uint64_t* landed;  // [warps of the team][kRingSlots] mbarriers
    int* found;
};
constexpr int kRingSlots = 4;  // of each warp, where warps use the ring on their own

// kWarps == 0: all warps of the block.
template <int kWarps>
class GpuTeam {
   public:
    TEAM_FN GpuTeam(int index, int count, const Scratch& scratch)
        : index_(index), count_(count), scratch_(scratch) {}

    TEAM_FN int index() const { return index_; }
    TEAM_FN int count() const { return count_; }

    TEAM_FN static int num_lanes() {
        if constexpr (kWarps == 0)
            return static_cast<int>(blockDim.x);
        else
            return kWarps * kWarpLanes;
    }
    TEAM_FN static int lane() {
        if constexpr (kWarps == 0)
            return static_cast<int>(threadIdx.x);
        else
            return static_cast<int>(threadIdx.x % (kWarps * kWarpLanes));
    }
    TEAM_FN static int warp() { return lane() / kWarpLanes; }
    TEAM_FN static int num_warps() { return num_lanes() / kWarpLanes; }

    TEAM_FN void sync() const {
        if constexpr (kWarps == 0)
            __syncthreads();
        else
            bar_sync(1 + static_cast<int>(threadIdx.x) / (kWarps * kWarpLanes), kWarps * kWarpLanes);
    }

    template <class F>
    TEAM_FN void once(F f) const {
        if (lane() == 0) f();
    }

    template <class F>
    TEAM_FN int first(int n, F f) const {
        if (lane() == 0) *scratch_.found = n;
        sync();
        for (int i = lane(); i < n; i += num_lanes())
            if (f(i)) atomicMin(scratch_.found, i);
        sync();
        const int lowest = *scratch_.found;
        sync();  // before somebody asks again
        return lowest < n ? lowest : -1;
    }

    template <class F>
    TEAM_FN auto fan(int n, F f) const {
        Fan<decltype(f(0))> all{};
        if (lane_of_warp() < n) all.own = f(lane_of_warp());
        __syncwarp();
        return all;
    }

    template <class F>
    TEAM_FN void lanes(int n, F f) const {
        for (int i = lane(); i < n; i += num_lanes()) f(i);
    }

    template <class F>
    TEAM_FN void share(int n, F f) const {
        for (int i = index_; i < n; i += count_) f(i);
    }

    // Blocks are numbered over all groups. A warp holds the numbers of 32 groups at a time.
    template <class F>
    TEAM_FN void share_blocks(int num_groups, const std::uint32_t* counts, int block, F f) const {
        int before = 0, next = index_;
        for (int window = 0; window < num_groups; window += kWarpLanes) {
            const int group = window + lane_of_warp();
            const int rows = group < num_groups ? static_cast<int>(counts[group]) : 0;
            const int blocks = (rows + block - 1) / block;
            const int upto = before + sum_of_lanes_before(blocks) + blocks;
            const int end = __shfl_sync(kAllLanes, upto, kWarpLanes - 1);
            for (; next < end; next += count_) {
                const int owner = __popc(__ballot_sync(kAllLanes, upto <= next));
                const int of_rows = __shfl_sync(kAllLanes, rows, owner);
                const int first = next - __shfl_sync(kAllLanes, upto - blocks, owner);
                f(window + owner, first * block, min(block, of_rows - first * block));
            }
            before = end;
        }
    }

    TEAM_FN std::byte* stage(std::uint64_t) const { return scratch_.base + scratch_.ring_bytes; }

    // For the verbs. The ring in two halves, which the whole team writes in turn...
    TEAM_FN std::byte* half() const { return scratch_.base + bulk.half * half_bytes(); }
    TEAM_FN std::uint32_t half_bytes() const { return scratch_.ring_bytes / 2; }
    // ... or in slots of each warp's own, and the mbarrier of each slot.
    TEAM_FN std::uint32_t slot_bytes() const { return scratch_.ring_bytes / (kRingSlots * num_warps()); }
    TEAM_FN std::byte* slot(std::uint32_t load) const {
        return scratch_.base + (warp() * kRingSlots + load % kRingSlots) * slot_bytes();
    }
    TEAM_FN std::uint64_t* landed(std::uint32_t load) const {
        return scratch_.landed + warp() * kRingSlots + load % kRingSlots;
    }
    TEAM_FN std::byte* scratch() const { return scratch_.base; }
    TEAM_FN std::uint32_t scratch_bytes() const { return scratch_.bytes; }
    mutable BulkState bulk{};

    TEAM_FN static int sum_of_lanes_before(int value) {
        int sum = value;
        for (int step = 1; step < kWarpLanes; step *= 2) {
            const int other = __shfl_up_sync(kAllLanes, sum, step);
            if (lane_of_warp() >= step) sum += other;
        }
        return sum - value;
    }

   private:
    const int index_;
    const int count_;
    const Scratch scratch_;
};

DEEP_LL_TIER_END
