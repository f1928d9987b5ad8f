// rearrange.hpp: order within small arrays: ordinals of equal keys, and words from rows to columns.
#pragma once

#include "team/copy.hpp"

DEEP_LL_TIER_BEGIN

// ordinals[i] = how many j < i have the same key; histogram[key] = how many there are. Negative keys count nowhere.
template <class Team>
TEAM_FN void enumerate(const Team& team, const std::int32_t* keys, int n, std::int32_t* ordinals, std::uint32_t* histogram,
                       int num_keys) {
    team.lanes(num_keys, [&](int key) { histogram[key] = 0; });
    team.once([&] {
        for (int i = 0; i < n; ++i)
            if (keys[i] >= 0) ordinals[i] = static_cast<std::int32_t>(histogram[keys[i]]++);
        return 0;
    });
    team.sync();
}

struct WordMatrix {
    const std::byte* rows;     // row-major source
    std::uint64_t row_stride;  // bytes
    std::uint32_t* columns;    // column-major destination
    std::uint64_t column_stride;  // words
    int num_rows;
    int num_columns;
};

// A line of each column at once: the columns are a power of two apart, so they share few cache sets, and a line that
// is written whole need not stay in one.
constexpr int kLineWords = static_cast<int>(kLine / 4);

TEAM_FN void transpose_lines(const WordMatrix& m, int row, int first_column, int num_columns) {
    alignas(kLine) std::uint32_t block[8][kLineWords];
    for (int r = 0; r < kLineWords; ++r) {
        const std::byte* from = m.rows + static_cast<std::uint64_t>(row + r) * m.row_stride;
        std::uint32_t words[8] = {};
        std::memcpy(words, from + first_column * 4, static_cast<std::size_t>(num_columns) * 4);
        for (int c = 0; c < 8; ++c) block[c][r] = words[c];
    }
    for (int c = 0; c < num_columns; ++c) {
        std::uint32_t* to = m.columns + static_cast<std::uint64_t>(first_column + c) * m.column_stride + row;
        for (int i = 0; i < kLineWords; i += kLanes)
            stream_vector(reinterpret_cast<std::byte*>(to + i), load<VecU32>(&block[c][i]));
    }
}

template <class Team>
TEAM_FN void transpose(const Team&, const WordMatrix& m) {
    const bool aligned = (reinterpret_cast<std::uintptr_t>(m.columns) | m.column_stride * 4) % kLine == 0;
    int row = 0;
    for (; aligned && row + kLineWords <= m.num_rows; row += kLineWords) {
        int column = 0;
        for (; column + 8 <= m.num_columns; column += 8) transpose_lines(m, row, column, 8);
        if (column < m.num_columns) transpose_lines(m, row, column, m.num_columns - column);
    }
    for (; row < m.num_rows; ++row) {
        const std::byte* from = m.rows + static_cast<std::uint64_t>(row) * m.row_stride;
        for (int c = 0; c < m.num_columns; ++c)
            std::memcpy(m.columns + static_cast<std::uint64_t>(c) * m.column_stride + row, from + c * 4, 4);
    }
}

DEEP_LL_TIER_END
