// rearrange.cuh: order within small arrays: ordinals of equal keys, sums and scans of columns, words from
// rows to columns.
#pragma once

#include "team/gpu/gpu_team.cuh"

DEEP_LL_TIER_BEGIN

// A run of keys that one warp walks through, with a histogram of its own.
struct KeyRun {
    const std::int32_t* keys;
    std::int32_t* ordinals;
    int begin, end;
    std::uint16_t* seen;  // shared memory, [num_keys]
};

// The ordinal of each key within its run: 32 at a time; lanes with the same key count each other.
TEAM_FN void enumerate_run(const KeyRun& run) {
    for (int start = run.begin; start < run.end; start += kWarpLanes) {
        const int i = start + lane_of_warp();
        const std::int32_t key = i < run.end ? run.keys[i] : -1;
        const unsigned same = __match_any_sync(kAllLanes, key);
        const int before = __popc(same & ((1u << lane_of_warp()) - 1));
        const int seen = key >= 0 ? run.seen[key] : 0;
        __syncwarp();
        if (key >= 0 && before == 0) run.seen[key] = static_cast<std::uint16_t>(seen + __popc(same));
        if (key >= 0) run.ordinals[i] = seen + before;
        __syncwarp();
    }
}

// ordinals[i] = how many j < i have the same key; histogram[key] = how many there are, less than 2^16.
// Negative keys count nowhere. Warps take a run each; what is in the runs before is added afterwards.
template <class Team>
TEAM_FN void enumerate(const Team& team,
                       const std::int32_t* keys,
                       int n,
                       std::int32_t* ordinals,
                       std::uint32_t* histogram,
                       int num_keys) {
    auto* seen = reinterpret_cast<std::uint16_t*>(team.scratch());
    const int room = static_cast<int>(team.scratch_bytes()) / (2 * num_keys);
    const int runs = min(team.num_warps(), room);
    const int length = ((n + runs - 1) / runs + kWarpLanes - 1) / kWarpLanes * kWarpLanes;
    const int mine = team.warp();
    const KeyRun run{keys, ordinals, min(mine * length, n), mine < runs ? min((mine + 1) * length, n) : 0,
                     seen + mine * num_keys};
    team.lanes(runs * num_keys, [&](int i) { seen[i] = 0; });
    team.sync();
    enumerate_run(run);
    team.sync();
    team.lanes(num_keys, [&](int key) {
        std::uint32_t sum = 0;
        for (int r = 0; r < runs; ++r) {
            const std::uint32_t here = seen[r * num_keys + key];
            seen[r * num_keys + key] = static_cast<std::uint16_t>(sum);
            sum += here;
        }
        histogram[key] = sum;
    });
    team.sync();
    for (int i = run.begin + lane_of_warp(); i < run.end; i += kWarpLanes)
        if (keys[i] >= 0) ordinals[i] += run.seen[keys[i]];
    team.sync();
}

// By the first warp.
template <class Team>
TEAM_FN void running_sum(const Team& team, const std::uint32_t* numbers, int n, std::uint32_t* sums) {
    std::uint32_t before = 0;
    for (int start = 0; start < n && team.warp() == 0; start += kWarpLanes) {
        const int i = start + lane_of_warp();
        const int number = i < n ? static_cast<int>(numbers[i]) : 0;
        const int here = Team::sum_of_lanes_before(number);
        if (i < n) sums[i] = before + static_cast<std::uint32_t>(here);
        before += static_cast<std::uint32_t>(__shfl_sync(kAllLanes, here + number, kWarpLanes - 1));
    }
    team.sync();
}

// out[c] = the sum of column c over the first `num_rows` rows; kTooLarge + r if the number of row r is more
// than `most`. Sums are made of the numbers that were compared, whatever becomes of the table meanwhile.
template <class Team>
TEAM_FN void sum_rows(const Team& team,
                      const NumberTable& table,
                      int num_rows,
                      int num_columns,
                      std::uint32_t most,
                      std::uint32_t* out) {
    team.lanes(num_columns, [&](int c) {
        std::uint32_t sum = 0, too_large = 0;
#pragma unroll 8
        for (int r = 0; r < num_rows; ++r) {
            const std::uint32_t number = table.row(r)[c];
            sum += number;
            if (number > most && too_large == 0) too_large = kTooLarge + static_cast<std::uint32_t>(r);
        }
        out[c] = too_large != 0 ? too_large : sum;
    });
}

// entry(c, r, begin, number) for each number of a column, in which it begins after those of the rows before;
// then total(c, sum). All numbers are fetched at once, then lanes walk down the columns.
template <class Team, class Entry, class Total>
TEAM_FN void scan_rows(
    const Team& team, const NumberTable& table, int first_column, int num_columns, Entry entry, Total total) {
    auto* numbers = reinterpret_cast<std::uint16_t*>(team.scratch());
    team.lanes(num_columns * table.num_rows, [&](int i) {
        numbers[i] = static_cast<std::uint16_t>(table.at(i / num_columns, first_column + i % num_columns));
    });
    team.sync();
    team.lanes(num_columns, [&](int c) {
        std::uint32_t begin = 0;
        for (int r = 0; r < table.num_rows; ++r) {
            const std::uint32_t number = numbers[r * num_columns + c];
            entry(c, r, begin, number);
            begin += number;
        }
        total(c, begin);
    });
}

// Lanes of a warp are rows, so that they write neighbouring words; warps share the columns.
template <class Team>
TEAM_FN void transpose(const Team& team, const WordMatrix& m) {
    for (int start = 0; start < m.num_rows; start += kWarpLanes) {
        const int row = start + lane_of_warp();
        if (row >= m.num_rows) break;
        const auto* from = reinterpret_cast<const std::uint32_t*>(
            global_memory(m.rows + static_cast<std::uint64_t>(row) * m.row_stride));
        std::uint32_t* to = global_memory(m.columns + row);
#pragma unroll 4
        for (int c = team.warp(); c < m.num_columns; c += team.num_warps())
            to[static_cast<std::uint64_t>(c) * m.column_stride] = from[c];
    }
}

DEEP_LL_TIER_END
