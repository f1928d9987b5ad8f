// link_job.hpp: what the floor of one configuration of the benchmark moves, and to where.
#pragma once

#include <algorithm>
#include <cstdint>
#include <istream>
#include <vector>

#include "link_world.hpp"

// Its two halves: 0, what is dispatched; 1, what comes back.
struct Job {
    int ranks = 0, per_node = 0, bytes[2] = {};    // of a row
    std::vector<int> dispatched;                   // rows [from * ranks + to]
    std::vector<std::uint64_t> places[2];          // where they go in the heap of `to`
    std::uint64_t heap_bytes = 0, most_bytes = 0;  // of any rank; from one rank to another

    bool remote(int a, int b) const { return a / per_node != b / per_node; }
    int rows(int half, int from, int to) const {
        return half == 0 ? dispatched[from * ranks + to] : dispatched[to * ranks + from];
    }

    bool read(std::istream& words) {
        words >> ranks >> per_node >> bytes[0] >> bytes[1];
        if (!words || ranks < 1 || ranks > kMaxRanks || per_node < 1) return false;
        dispatched.resize(ranks * ranks);
        for (int& number : dispatched) words >> number;
        if (!words) return false;
        places[0] = places[1] = std::vector<std::uint64_t>(ranks * ranks);
        for (int to = 0; to < ranks; ++to) place(to);
        return true;
    }

   private:
    void place(int to) {
        std::uint64_t end = World::kData;
        for (int half = 0; half < 2; ++half) {
            for (int from = 0; from < ranks; ++from) {
                const std::uint64_t block = std::uint64_t(rows(half, from, to)) * bytes[half];
                places[half][from * ranks + to] = end;
                end += block;
                most_bytes = std::max(most_bytes, block);
            }
        }
        heap_bytes = std::max(heap_bytes, end);
    }
};
