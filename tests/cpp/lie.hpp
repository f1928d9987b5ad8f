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
enum class End { none, timeout, beyond, disagreement, nonsense, evicted };
constexpr int kEnds = 6;

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
    std::vector<std::uint8_t> mask;  // empty: nobody is ever left out
};

// A word of a source in another rank's heap, and what it becomes.
struct Lie {
    const char* of;
    int victim, source;
    Step moment;  // before this one
    bool possible = false;
};

// How outputs come back, and whether ranks may be left out.
struct Way {
    bool pulled = false;
    bool logfmt = false;
    bool shrinks = false;
};

// All ranks, and the lie that one of them is told.
struct Scene {
    Dice dice;
    Way way;
    std::vector<Rank> ranks;
    std::vector<model::Round> rounds;
    std::vector<std::uint64_t> bases;
    Window window{};
    int now = 0;
    int kind = 0;
    Lie lie{};

    int size() const { return static_cast<int>(ranks.size()); }
    const model::Round& round() const { return rounds[static_cast<std::size_t>(now)]; }
    std::uint32_t epoch() const { return static_cast<std::uint32_t>(now + 1); }
    std::uint32_t slot() const { return static_cast<std::uint32_t>(now % 2); }
    Rank& rank(int index) { return ranks[static_cast<std::size_t>(index)]; }
    Rank& victim() { return rank(lie.victim); }
    // In the victim's heap.
    template <class T>
    T& at(std::uint64_t offset) {
        return *reinterpret_cast<T*>(bases[static_cast<std::size_t>(lie.victim)] + offset);
    }
};

// Which lie it will be, of whom and when.
void choose_lie(Scene& scene);
// Tells it, but for one about grants while they are exchanged, which is for the liar in the midst of `place`.
void tell(Scene& scene);
void tell_grant(Scene& scene);
bool lies_while_placing(const Scene& scene);

}  // namespace lies
