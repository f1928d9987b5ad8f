// rearrange.hpp: order within small arrays: ordinals of equal keys, and words from rows to columns.
#pragma once

#include "team/host/copy.hpp"

DEEP_LL_TIER_BEGIN

// ordinals[i] = how many j < i have the same key; histogram[key] = how many there are. Negative keys count
// nowhere.
template <class Team>
TEAM_FN void enumerate(const Team& team,
                       const std::int32_t* keys,
                       int n,
                       std::int32_t* ordinals,
                       std::uint32_t* histogram,
                       int num_keys) {
    team.lanes(num_keys, [&](int key) { histogram[key] = 0; });
    for (int i = 0; i < n; ++i)
        if (keys[i] >= 0) ordinals[i] = static_cast<std::int32_t>(histogram[keys[i]]++);
}

// out[c] = the sum of column c over the first `num_rows` rows; kTooLarge + r if the number of row r is more
// than `most`. Sums are made of the numbers that were compared, whatever becomes of the table meanwhile.
template <class Team>
TEAM_FN void sum_rows(const Team&,
                      const NumberTable& table,
                      int num_rows,
                      int num_columns,
                      std::uint32_t most,
                      std::uint32_t* out) {
    for (int c = 0; c < num_columns; ++c) out[c] = 0;
    for (int r = 0; r < num_rows; ++r) {
        const std::uint16_t* row = table.row(r);
        const std::uint32_t instead = kTooLarge + static_cast<std::uint32_t>(r);
        for (int c = 0; c < num_columns; ++c) {
            const std::uint32_t number = row[c], sum = out[c] + number;
            const std::uint32_t checked = number > most ? instead : sum;
            out[c] = out[c] >= kTooLarge ? out[c] : checked;
        }
    }
}

// entry(c, r, begin, number) for each number of a column, in which it begins after those of the rows before;
// then total(c, sum). Columns count from `first_column`.
template <class Team, class Entry, class Total>
TEAM_FN void scan_rows(
    const Team&, const NumberTable& table, int first_column, int num_columns, Entry entry, Total total) {
    for (int c = 0; c < num_columns; ++c) {
        std::uint32_t begin = 0;
        for (int r = 0; r < table.num_rows; ++r) {
            const std::uint32_t number = table.at(r, first_column + c);
            entry(c, r, begin, number);
            begin += number;
        }
        total(c, begin);
    }
}

using Quad = std::uint32_t __attribute__((vector_size(16)));

template <int a, int b, int c, int d>
TEAM_FN Quad pick(Quad x, Quad y) {
#if defined(__clang__)
    return __builtin_shufflevector(x, y, a, b, c, d);
#else
    return __builtin_shuffle(x, y, Quad{a, b, c, d});
#endif
}

// Four rows of four words become four columns.
TEAM_FN void transpose_quads(Quad (&q)[4]) {
    const Quad low01 = pick<0, 4, 1, 5>(q[0], q[1]), high01 = pick<2, 6, 3, 7>(q[0], q[1]);
    const Quad low23 = pick<0, 4, 1, 5>(q[2], q[3]), high23 = pick<2, 6, 3, 7>(q[2], q[3]);
    q[0] = pick<0, 1, 4, 5>(low01, low23);
    q[1] = pick<2, 3, 6, 7>(low01, low23);
    q[2] = pick<0, 1, 4, 5>(high01, high23);
    q[3] = pick<2, 3, 6, 7>(high01, high23);
}

constexpr int kLineWords = static_cast<int>(kLine / 4);

// Sixteen rows. Beyond the last one it is read again: what is written there is undefined.
struct RowBlock {
    const std::byte* rows[kLineWords];

    TEAM_FN RowBlock(const WordMatrix& m, int first) {
        for (int r = 0; r < kLineWords; ++r) {
            const int row = first + r < m.num_rows ? first + r : m.num_rows - 1;
            rows[r] = m.rows + static_cast<std::uint64_t>(row) * m.row_stride;
        }
    }
};

// Four words of sixteen rows: a line of each of four columns. The columns are a power of two apart and share
// few cache sets, so lines are written whole and past the caches.
TEAM_FN void transpose_lines(const WordMatrix& m, const RowBlock& block, int row, int column) {
    Quad lines[4][kLineWords / 4];
    for (int r = 0; r < kLineWords; r += 4) {
        Quad quads[4];
        for (int i = 0; i < 4; ++i) quads[i] = load<Quad>(block.rows[r + i] + column * 4);
        transpose_quads(quads);
        for (int c = 0; c < 4; ++c) lines[c][r / 4] = quads[c];
    }
    auto* to =
        reinterpret_cast<std::byte*>(m.columns + static_cast<std::uint64_t>(column) * m.column_stride + row);
    const int num_columns = m.num_columns - column < 4 ? m.num_columns - column : 4;
    for (int c = 0; c < num_columns; ++c, to += m.column_stride * 4)
        for (int i = 0; i < kLineWords; i += kLanes) store(to + i * 4, load<VecU32>(&lines[c][i / 4]));
}

// A line of rows from `row` on, whole: peers wrote them past the caches, and columns are read in no order
// that a processor would guess.
TEAM_FN void prefetch_rows(const WordMatrix& m, int row) {
    const int end = row + kLineWords < m.num_rows ? row + kLineWords : m.num_rows;
    const std::byte* to = m.rows + static_cast<std::uint64_t>(end) * m.row_stride;
    for (const std::byte* at = m.rows + static_cast<std::uint64_t>(row) * m.row_stride; at < to; at += kLine)
        prefetch(at);
}

// The lines of each column that a block will write: all at once instead of one after the other.
TEAM_FN void prefetch_columns(const WordMatrix& m, int row) {
    for (int c = 0; c < m.num_columns; ++c)
        __builtin_prefetch(m.columns + static_cast<std::uint64_t>(c) * m.column_stride + row, 1);
}

// Whole lines of the destination are written: up to fifteen words of each column beyond num_rows.
template <class Team>
TEAM_FN void transpose(const Team&, const WordMatrix& m) {
    const bool whole_lines = (reinterpret_cast<std::uintptr_t>(m.columns) | m.column_stride * 4) % kLine == 0;
    if (whole_lines && m.num_rows > 0) {
        prefetch_rows(m, 0);
        for (int row = 0; row < m.num_rows; row += kLineWords) {
            prefetch_rows(m, row + kLineWords);
            const RowBlock block(m, row);
            prefetch_columns(m, row);
            for (int column = 0; column < m.num_columns; column += 4) transpose_lines(m, block, row, column);
        }
        return;
    }
    for (int row = 0; row < m.num_rows; ++row) {
        const std::byte* from = m.rows + static_cast<std::uint64_t>(row) * m.row_stride;
        for (int c = 0; c < m.num_columns; ++c)
            std::memcpy(m.columns + static_cast<std::uint64_t>(c) * m.column_stride + row, from + c * 4, 4);
    }
}

DEEP_LL_TIER_END
