// verbs.hpp: what verbs take, on every machine. The verbs themselves are found by the type of the team:
// host/ has those of HostTeam, gpu/ those of GpuTeam.
// clang-format off
//   put(team, to, from, bytes, how)                a row from this rank's memory to anyone's
//   put_row(team, peers, place, from, bytes, how)  the same to a peer that may be behind a link
//   ship(team, peers, place, bytes)                what was written for such a peer, on its way
//   ship_from(team, peers, place, from, bytes)     the same, but it lies in this rank's memory at `from`
//   put_to(team, targets, n, from, bytes, how)     one row to several targets; it is read once
//   put_patched(team, targets, n, row, patch, how) the same, but for 8 bytes that differ
//   quantize_to(team, targets, n, scales, row, num_groups, format, how)   the same, cast on the way
//   put_logfmt(team, peers, place, row, num_groups, how)   a row to a peer that may be behind a link, in LogFMT
//   settle(team)                                   all of that comes before what is published after this phase
//   weighted_sum(team, out, rows, weights, n, hidden, how)
//   weighted_sum_logfmt(team, out, rows, weights, n, num_groups, how)   of rows that came in LogFMT
//   transpose(team, matrix)                        words from rows to columns
//   enumerate(team, keys, n, ordinals, histogram, num_keys)
//   running_sum(team, numbers, n, sums)            sums[i]: of the numbers before i
//   sum_rows(team, table, num_rows, num_columns, most, out)
//   scan_rows(team, table, first_column, num_columns, entry, total)
//   publish_all(team, peers, words)                some words, the same to every rank
//   await_all(team, peers, awaited, signal_of, policy, report), observe(team, peers, signal)
//   leave_out(team, peers, rank)                   the group goes on without it, and tells it
//   tell_left_out(team, peers, rank)               tells it again
//   claim(team, word)                              true for the first lane of all teams that asks
//   tell_host(team, word, value)                   what the caller looks at while kernels run
// clang-format on
#pragma once

#include "core/layout.hpp"
#include "core/numeric.hpp"
#include "team/signal.hpp"

namespace deep_ll {

// Streaming stores go past a processor's caches: right for what is larger than them, wrong for what is read
// at once.
enum class Store : std::uint32_t { cached = 0, streaming = 1 };

constexpr std::uint64_t kVectorBytes = 16;  // the contract of every row: multiples of this, aligned to this
constexpr int kMaxFan = 32;                 // widest fan of a team

// A place in a peer's heap.
struct Place {
    int peer;
    std::uint64_t offset;
    Box box{};                // where the peer counts what arrives
    std::uint64_t waits = 0;  // where in this rank's heap a row is built that is shipped later
};

// A row in a team's own memory, of which 8 bytes are another for each target.
struct Patched {
    std::byte* bytes;
    std::uint64_t num_bytes;
    std::uint64_t at;  // a multiple of 8
};

struct WordMatrix {
    const std::byte* rows;        // row-major source, padded to whole vectors of 16 bytes
    std::uint64_t row_stride;     // bytes
    std::uint32_t* columns;       // column-major destination
    std::uint64_t column_stride;  // words
    int num_rows;
    int num_columns;
};

// What stands for a sum of numbers one of which is larger than it may be: this, and its row.
constexpr std::uint32_t kTooLarge = 1u << 31;

// Rows of 16-bit numbers.
struct NumberTable {
    const std::byte* first;
    std::uint64_t stride;  // bytes
    int num_rows;
    const std::uint8_t* skipped;  // [num_rows] rows that are not 0 here count as zeros; null: none

    TEAM_FN const std::uint16_t* row(int index) const {
        return global_memory(
            reinterpret_cast<const std::uint16_t*>(first + static_cast<std::uint64_t>(index) * stride));
    }
    TEAM_FN std::uint32_t at(int index, int column) const {
        return skipped != nullptr && global_memory(skipped)[index] != 0 ? 0u : row(index)[column];
    }
};

}  // namespace deep_ll
