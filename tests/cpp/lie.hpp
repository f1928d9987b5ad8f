// lie.hpp: what runs in which peers lie are made of.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "ep/args.hpp"
#include "model.hpp"

namespace lies {

using namespace deep_ll;

enum class Step {
    count,
    announce,
    place,
    send,
    deliver,
    rows,
    unpack,
    credit,
    push,
    offer,
    outputs,
    gather,
    end
};
constexpr int kSteps = static_cast<int>(Step::end);

// How a rank's calls ended.
enum class End { none, timeout, beyond, disagreement, nonsense };

class Dice {
   public:
    explicit Dice(std::uint64_t seed) : seed_(seed) {}
    std::uint64_t next() { return model::mix(seed_, ++drawn_, 77); }
    int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }
    // Near what is there, at an edge, or anything.
    std::uint64_t spoil(std::uint64_t value, std::uint64_t edge) {
        switch (below(5)) {
            case 0:
                return value + 1 + static_cast<std::uint64_t>(below(3));
            case 1:
                return value - 1 - static_cast<std::uint64_t>(below(3));
            case 2:
                return edge + static_cast<std::uint64_t>(below(2));
            case 3:
                return value ^ std::uint64_t{1} << below(64);
            default:
                return next();
        }
    }

   private:
    std::uint64_t seed_, drawn_ = 0;
};

// One rank's memory, and the arguments of its kernels.
struct Rank {
    std::unique_ptr<std::byte, decltype(&std::free)> heap{nullptr, &std::free};
    std::vector<std::byte> before;  // the heap
    Progress progress{};
    Verdict verdict{};
    End end = End::none;
    Shape shape{};
    std::vector<std::uint64_t> ledger;
    std::vector<std::int32_t> recv_count, choices;
    std::vector<std::int64_t> layout;
    std::vector<std::uint16_t> outputs, sums;
};

// A word of a source in another rank's heap, and what it becomes.
struct Lie {
    const char* of;
    int victim, source;
    Step moment;  // before this one
    bool possible = false;
};

}  // namespace lies
