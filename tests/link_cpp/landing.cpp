// landing.cpp: messages from the library's own writer, whole and damaged, into a heap that the sanitizer
// guards.
#include "symm/landing.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

using namespace deep_ll;

namespace {

constexpr std::uint64_t kHeapBytes = sizeof(HeapHeader) + 100'000;
constexpr int kRounds = 20'000;

struct Free {
    void operator()(std::uint8_t* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::uint8_t, Free>;

Memory allocate(std::uint64_t bytes, std::uint64_t align) {
    void* memory = nullptr;
    if (posix_memalign(&memory, align, bytes) != 0) std::abort();
    return Memory(static_cast<std::uint8_t*>(memory));
}

std::uint64_t write(std::mt19937_64& random, const MessageHead& head, std::uint8_t* to) {
    const std::vector<std::uint8_t> data(random() % 80'000, 7);
    MessageWriter writer(to, head);
    std::uint64_t at = sizeof(HeapHeader);
    for (int i = 0; i < 3; ++i) at += writer.add(at, data.data(), data.size() % (1 + random() % 40'000));
    writer.add(LinkWord{sizeof(HeapHeader) + random() % 100 * 8, random()});
    return writer.finish();
}

}  // namespace

int main() {
    std::mt19937_64 random(1);
    const Memory heap = allocate(kHeapBytes, kPage), buffer = allocate(kMessageBytes, 64);
    std::memset(heap.get(), 0, kHeapBytes);
    const Secret secret{1, 2, 3};
    Landing landing({reinterpret_cast<std::uint64_t>(heap.get()), kHeapBytes, secret, 0, 3});
    std::uint64_t number = 0, refused = 0;
    for (int round = 0; round < kRounds; ++round) {
        const std::uint64_t bytes = write(random, {secret, number, 1, 0, 0}, buffer.get());
        const bool whole = random() % 2 == 0;
        // A copy of its exact length, so that reading past it is seen.
        const std::uint64_t sent = whole ? bytes : random() % (bytes + 1);
        const Memory copy = allocate(sent + !sent, 64);
        std::memcpy(copy.get(), buffer.get(), sent);
        if (!whole && sent > sizeof secret)
            copy.get()[sizeof secret + random() % (sent - sizeof secret)] ^= 64;
        const bool landed = landing.land(copy.get(), sent);
        if (whole && !landed) return std::printf("round %d: a good message was refused\n", round), 1;
        LinkStats stats{};
        landing.describe(1, stats);
        number += landed && stats.held_back == 0;
        refused += !landed;
        if (stats.held_back != 0)
            landing =
                Landing({reinterpret_cast<std::uint64_t>(heap.get()), kHeapBytes, secret, 0, 3}, number);
    }
    std::printf("%llu of %d refused\n", static_cast<unsigned long long>(refused), kRounds);
    return refused == 0;
}
