// What the floor moves: the shape, the routing, and the arrays that all rank processes share.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

constexpr int kMaxTopk = 32;
constexpr int kMaxHidden = 8192;

struct Shape {
    int ranks = 8, tokens = 128, hidden = 7168, topk = 8, experts = 256;
    bool fp8 = true;

    size_t selections() const { return static_cast<size_t>(ranks) * tokens * topk; }
    size_t rows_per_expert() const { return static_cast<size_t>(ranks) * tokens; }
    size_t row_bytes() const { return static_cast<size_t>(hidden) * (fp8 ? 1 : 2); }
    size_t scale_bytes() const { return (static_cast<size_t>(hidden) / 128 * 4 + 255) / 256 * 256; }
    bool valid() const {
        return ranks > 0 && tokens > 0 && topk > 0 && topk <= kMaxTopk && topk <= experts &&
               experts % ranks == 0 && hidden > 0 && hidden % 128 == 0 && hidden <= kMaxHidden;
    }
};

// Without a reserve only the pages that are touched count, as in the library's heap.
template <typename T>
T* map_array(size_t count, int sharing) {
    const int flags = sharing | MAP_ANONYMOUS | MAP_NORESERVE;
    void* memory = mmap(nullptr, count * sizeof(T) + 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        std::exit(3);
    }
    return static_cast<T*>(memory);
}

template <typename T>
T* shared_array(size_t count) {
    return map_array<T>(count, MAP_SHARED);
}

// A row that an expert's rank holds: where it is, and which (token, k) in the ranks' order it answers.
struct Held {
    size_t slot, selection;
};

struct Work {
    Shape shape;
    std::vector<int32_t> experts;  // [ranks * tokens * topk], -1 for no choice
    std::vector<size_t> slots;     // the row of each selection
    std::vector<float> weights;
    std::vector<std::vector<Held>> held;  // per rank, in row order

    uint16_t* x;         // [ranks * tokens, hidden]
    uint8_t* rows;       // [experts * rows_per_expert, row_bytes]
    uint8_t* scales;     // [experts * rows_per_expert, scale_bytes]
    int32_t* sources;    // [experts * rows_per_expert]
    uint16_t* shared_y;  // [experts * rows_per_expert, hidden]: the rows the zero-copy combine reads in place
    uint16_t* inbox;     // [ranks, topk, tokens, hidden]
    uint16_t* out;       // [ranks * tokens, hidden]

    Work(const Shape& given, std::vector<int32_t> chosen) : shape(given), experts(std::move(chosen)) {
        assign_slots();
        const size_t num_rows = shape.experts * shape.rows_per_expert(), hidden = shape.hidden;
        x = shared_array<uint16_t>(shape.rows_per_expert() * hidden);
        rows = shared_array<uint8_t>(num_rows * shape.row_bytes());
        scales = shared_array<uint8_t>(num_rows * shape.scale_bytes());
        sources = shared_array<int32_t>(num_rows);
        shared_y = shared_array<uint16_t>(num_rows * hidden);
        inbox = shared_array<uint16_t>(shape.selections() * hidden);
        out = shared_array<uint16_t>(shape.rows_per_expert() * hidden);
    }

    uint16_t* inbox_row(size_t selection) const {
        const size_t token = selection / shape.topk % shape.tokens, k = selection % shape.topk;
        const size_t rank = selection / shape.topk / shape.tokens;
        return inbox + ((rank * shape.topk + k) * shape.tokens + token) * shape.hidden;
    }

   private:
    void assign_slots() {
        std::vector<size_t> count(shape.experts);
        held.resize(shape.ranks);
        std::mt19937 random(1);
        for (size_t i = 0; i < experts.size(); ++i) {
            const int expert = experts[i];
            weights.push_back(static_cast<float>(random() % 1000 + 1) / 4000.0f);
            slots.push_back(expert < 0 ? 0 : expert * shape.rows_per_expert() + count[expert]++);
            if (expert >= 0) held[expert / (shape.experts / shape.ranks)].push_back({slots[i], i});
        }
        for (auto& rows_of_rank : held) {
            std::sort(rows_of_rank.begin(), rows_of_rank.end(),
                      [](Held a, Held b) { return a.slot < b.slot; });
        }
    }
};

inline std::vector<int32_t> random_routing(const Shape& shape) {
    std::mt19937 random(7);
    std::vector<int32_t> order(shape.experts), chosen;
    for (int e = 0; e < shape.experts; ++e) order[e] = e;
    for (size_t i = 0; i < shape.selections(); ++i) {
        const size_t k = i % shape.topk;
        std::swap(order[k], order[k + random() % (shape.experts - k)]);
        chosen.push_back(order[k]);
    }
    return chosen;
}
