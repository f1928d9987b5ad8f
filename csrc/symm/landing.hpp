// landing.hpp: where messages of a link arrive: they are checked, written into the heap and put into order.
// One thread at a time. Host only.
#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "symm/heap.hpp"
#include "symm/message.hpp"

namespace deep_ll {

// A rank's own heap and what it shares with its group.
struct LandingPlace {
    std::uint64_t heap;  // address; it begins with a HeapHeader
    std::uint64_t heap_bytes;
    Secret secret;
    int rank;
    int size;
};

// NOTE [words wait]: a transport may deliver messages in any order (several lanes, several cards). Counting
// arrivals is not enough to know that what came before a word has landed: a later message that overtook would
// be counted for a missing one. So messages are numbered, and the words of one are stored when it and all
// before it have landed.
class Landing {
   public:
    // How far messages may overtake each other; more is not order lost but nonsense.
    static constexpr std::uint64_t kMaxEarly = 1 << 16;

    // `first_number` is that of each sender's first message; not 0 only in tests.
    explicit Landing(const LandingPlace& place, std::uint64_t first_number = 0);

    // False: the message was bad. It is counted, and nothing of it was written.
    bool land(const std::uint8_t* message, std::uint64_t bytes);
    // A sender begins anew, with a message of this number. What its past sent is refused, as all that is too
    // early or was there before.
    void begin(int sender, std::uint64_t number) { senders_[sender] = first(number); }
    // What a sender sends is not written any more; or again.
    void refuse(int sender, bool refused) { senders_[sender].refused = refused; }
    // For what arrived but is no message.
    void drop() { ++dropped_; }

    bool heard(int sender) const { return senders_[sender].messages != 0; }
    // When the last words of a sender were stored (CLOCK_MONOTONIC); 0: never. Any thread may ask.
    std::int64_t landed_ns(int sender) const { return landed_ns_[sender].load(std::memory_order_relaxed); }
    // The half of the statistics that belongs to the receiver.
    void describe(int sender, LinkStats& stats) const;
    // Bad messages by nobody of the group.
    std::uint64_t dropped() const { return dropped_; }

   private:
    struct Sender {
        std::uint64_t next;  // number of the first message that has not landed
        std::unordered_map<std::uint64_t, std::vector<LinkWord>> early;  // words of later ones that have
        std::uint64_t messages, bytes, dropped;
        bool refused = false;
    };

    static Sender first(std::uint64_t number) { return {number, {}, 0, 0, 0, false}; }
    bool known(std::int64_t sender) const { return sender >= 0 && sender < place_.size; }
    bool is_member(const MessageHead& head) const;
    bool is_new(const Sender& sender, std::uint64_t number) const;
    bool fits(const SpanHead& span) const;
    bool fits(const LinkWord& word) const;
    void advance(std::uint32_t from, std::uint64_t number, std::vector<LinkWord>& words);
    void publish(std::uint32_t from, const std::vector<LinkWord>& words);

    LandingPlace place_;
    std::vector<Sender> senders_;
    std::unique_ptr<std::atomic<std::int64_t>[]> landed_ns_;
    std::vector<LinkWord> words_;  // of the message at hand
    std::uint64_t dropped_ = 0;
};

}  // namespace deep_ll
