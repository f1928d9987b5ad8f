// copy.cuh: rows of bytes to peers. A few lanes ask the copy engine; before Hopper all lanes move 16 bytes
// each.
#pragma once

#include "team/gpu/link.cuh"

DEEP_LL_TIER_BEGIN

// Rows that go to several targets are built in a half of the team's ring. Lane k of the first warp puts them
// to target k and waits for what it has put: open_half() before the team writes, put_half() after.
template <class Team>
TEAM_FN std::byte* open_half(const Team& team) {
    if constexpr (kHasBulk) {
        if (team.warp() == 0) bulk_await_read<1>();
    }
    team.sync();
    return team.half();
}

template <class Team>
TEAM_FN void copy_lanes(const Team& team, std::byte* to, const std::byte* from, std::uint32_t bytes) {
    for (std::uint32_t at = 16 * team.lane(); at < bytes; at += 16 * team.num_lanes())
        store16(to + at, *reinterpret_cast<const Vec16*>(from + at));
}

template <class Team, class Targets>
TEAM_FN void put_half(
    const Team& team, const Targets& targets, int num_targets, std::uint64_t at, std::uint32_t bytes) {
    if constexpr (kHasBulk) seal_shared();
    team.sync();
    if constexpr (kHasBulk) {
        if (team.warp() == 0) {
            std::byte* to = lane_of_warp() < num_targets ? targets.mine(lane_of_warp()) : nullptr;
            if (to != nullptr) bulk_store(to + at, team.half(), bytes);
            bulk_commit();
        }
    } else {
        for (int k = 0; k < num_targets; ++k)
            if (std::byte* to = targets.at(k)) copy_lanes(team, to + at, team.half(), bytes);
    }
    team.bulk.half ^= 1;
}

template <class Team, class Targets>
TEAM_FN void put_to(const Team& team,
                    const Targets& targets,
                    int num_targets,
                    const std::byte* from,
                    std::uint64_t bytes,
                    Store) {
    for (std::uint64_t at = 0; at < bytes; at += team.half_bytes()) {
        const auto size = static_cast<std::uint32_t>(min(bytes - at, std::uint64_t{team.half_bytes()}));
        std::byte* stage = open_half(team);
#pragma unroll 8
        for (std::uint32_t i = 16 * team.lane(); i < size; i += 16 * team.num_lanes())
            *reinterpret_cast<Vec16*>(stage + i) = load_constant16(from + at + i);
        put_half(team, targets, num_targets, at, size);
    }
}

// A warp for each target. Nothing is written beyond the vector that differs: it is the last one.
template <class Team, class Targets, class Patch>
TEAM_FN void put_patched(
    const Team& team, const Targets& targets, int num_targets, const Patched& row, Patch patch, Store) {
    const int last = static_cast<int>(row.at / 16);
    const bool in_high_half = row.at % 16 != 0;
    for (int k = team.warp(); k < num_targets; k += team.num_warps()) {
        std::byte* to = targets.at(k);
        if (to == nullptr) continue;
        const auto difference = __builtin_bit_cast(std::uint64_t, patch(k));
        const auto low = static_cast<std::uint32_t>(difference);
        const auto high = static_cast<std::uint32_t>(difference >> 32);
        for (int i = lane_of_warp(); i <= last; i += kWarpLanes) {
            Vec16 v{};
            if (i < last || in_high_half) v = *reinterpret_cast<const Vec16*>(row.bytes + 16 * i);
            if (i == last) v = in_high_half ? Vec16{v.w[0], v.w[1], low, high} : Vec16{low, high, 0, 0};
            store16(to + 16 * i, v);
        }
    }
}

// put(): one lane of each warp moves its part of the row through the warp's slots. A load is asked for, and
// two loads later what has landed is stored.
template <class Team>
TEAM_FN void pass_on(const Team& team, std::uint32_t load, std::byte* to, std::uint32_t bytes) {
    if (to != nullptr) {
        mbarrier_await(team.landed(load), load / kRingSlots % 2);
        bulk_store(to, team.slot(load), bytes);
    }
    bulk_commit();
}

template <class Team>
TEAM_FN void load_next(const Team& team, std::byte* to, const std::byte* from, std::uint32_t bytes) {
    BulkState& bulk = team.bulk;
    pass_on(team, bulk.loads - 2, bulk.older_to, bulk.older_bytes);
    bulk_await_read<2>();  // of the store before the last two, which was from the slot that is next
    bulk_load(team.slot(bulk.loads), from, bytes, team.landed(bulk.loads));
    bulk.older_to = bulk.newer_to;
    bulk.older_bytes = bulk.newer_bytes;
    bulk.newer_to = to;
    bulk.newer_bytes = bytes;
    ++bulk.loads;
}

template <class Team>
TEAM_FN void put(const Team& team, std::byte* to, const std::byte* from, std::uint64_t bytes, Store) {
    if constexpr (kHasBulk) {
        if (lane_of_warp() == 0) {
            const std::uint64_t slot = team.slot_bytes();
            for (std::uint64_t at = team.warp() * slot; at < bytes; at += team.num_warps() * slot)
                load_next(team, to + at, from + at, static_cast<std::uint32_t>(min(bytes - at, slot)));
        }
        __syncwarp();
    } else {
#pragma unroll 4
        for (std::uint64_t at = 16 * team.lane(); at < bytes; at += 16 * team.num_lanes())
            store16(to + at, load16(from + at));
    }
}

// Where a row for a peer is built: in its memory, or where it waits to be shipped.
TEAM_FN std::byte* row_place(const PeerMap& peers, const Place& to) {
    return peers.ships_later(to.peer) ? peers.mine<std::byte>(to.waits)
                                      : peers.at<std::byte>(to.peer, to.offset);
}

template <class Team>
TEAM_FN void put_row(const Team& team,
                     const PeerMap& peers,
                     const Place& to,
                     const std::byte* from,
                     std::uint64_t bytes,
                     Store how) {
    std::byte* target = row_place(peers, to);
    if (kShipsLater && target == from) return;  // outputs that were written there
    put(team, target, from, bytes, how);
}

template <class Team>
TEAM_FN void settle(const Team& team) {
    if constexpr (kHasBulk) {
        BulkState& bulk = team.bulk;
        if (lane_of_warp() == 0) {
            pass_on(team, bulk.loads - 2, bulk.older_to, bulk.older_bytes);
            pass_on(team, bulk.loads - 1, bulk.newer_to, bulk.newer_bytes);
        }
        bulk.older_to = bulk.newer_to = nullptr;
        bulk_await_all();
    }
    team.sync();
}

DEEP_LL_TIER_END
