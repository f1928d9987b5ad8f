// rank.hpp: one rank as a thread: real kernels over plain memory, and every byte they deliver compared with
// the model.
#pragma once

#include <cstddef>
#include <vector>

#include "bindings/exchange.hpp"
#include "program.hpp"

// What all ranks share; constant while they run, but for the heaps.
struct World {
    std::vector<model::Round> rounds;
    Program program;
    std::vector<std::uint64_t> heaps;  // base addresses
    std::uint64_t heap_bytes;
    int num_teams;
    std::uint32_t first_epoch;  // what a buffer had that has been used for long
    std::int64_t timeout_ns;
};

class Rank {
   public:
    Rank(const World& world, int rank);
    void run(const Step& step);

   private:
    // A round whose results are in the heap.
    struct Held {
        int round = -1;
        std::uint32_t epoch = 0;
        deep_ll::Shape shape{};
        std::vector<std::uint64_t> ledger;
        std::vector<std::int32_t> recv_count;
        std::vector<std::int64_t> layout_range;
        std::vector<std::int32_t> stats;
        std::vector<std::vector<model::Arrival>> arrivals;  // by local expert; of ranks that were there
    };
    // A combine under way.
    struct Sent {
        std::uint32_t epoch = 0;
        std::vector<std::int32_t> choices;
    };

    static deep_ll::Answer answer_of(const Held& held, std::uint32_t epoch, bool pulled);

    void dispatch(int round);
    void receive(int round);
    void combine(int index);
    void reduce(int index);

    void check_received(const Held& held) const;
    void check_expert(const Held& held, int local, const std::vector<model::Arrival>& rows) const;
    void check_row(const Held& held, int local, std::uint64_t row, model::Arrival arrival) const;
    void write_outputs(const Held& held, const model::Answer& answer, std::byte* to) const;
    void must(bool done, const char* what, int index) const;
    template <class T>
    T* mine(std::uint64_t offset) const;
    Held& held(int round) { return held_[round % 2]; }

    bool is_masked(int rank) const { return reinterpret_cast<const std::uint8_t*>(mask_.data())[rank] != 0; }

    const World& world_;
    const int rank_;
    std::vector<std::uint64_t> mask_ = std::vector<std::uint64_t>(deep_ll::kMaxRanks / 8, 0);
    deep_ll::Exchange exchange_;
    Held held_[2];
    Sent sent_[2];
};
