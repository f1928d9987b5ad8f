// landing.cpp: what arrives is believed only after it was checked.
#include "symm/landing.hpp"

#include <utility>

#include "core/check.hpp"
#include "symm/doorbell.hpp"

namespace deep_ll {
namespace {

// In a time that does not tell how much of it was right.
bool same(const Secret& a, const Secret& b) {
    std::uint8_t differing = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        differing = static_cast<std::uint8_t>(differing | (a[i] ^ b[i]));
    return differing == 0;
}

}  // namespace

Landing::Landing(const LandingPlace& place, std::uint64_t first_number)
    : place_(place),
      senders_(place.size, first(first_number)),
      landed_ns_(new std::atomic<std::int64_t>[static_cast<std::size_t>(place.size)]()) {
    DEEP_LL_INVARIANT(place.heap_bytes >= sizeof(HeapHeader), place.heap_bytes);
}

bool Landing::land(const std::uint8_t* message, std::uint64_t bytes) {
    Cursor body(message, bytes);
    MessageHead head;
    if (!body.take(head) || !is_member(head)) {
        ++dropped_;
        return false;
    }
    Sender& sender = senders_[head.sender];
    words_.clear();
    const auto keep = [&](const LinkWord& word) {
        words_.push_back(word);
        return fits(word);
    };
    // All of a message is looked at before any of it is written.
    if (!is_new(sender, head.number) ||
        !walk(head, body, [&](const SpanHead& span, const std::uint8_t*) { return fits(span); }, keep)) {
        ++sender.dropped;
        return false;
    }
    if (sender.refused) {
        ++sender.dropped;
        words_.clear();
        sender.early.clear();
        sender.next = head.number + 1;  // so that later ones find their turn, should they be wanted again
        return false;
    }
    const auto write = [&](const SpanHead& span, const std::uint8_t* data) {
        std::memcpy(reinterpret_cast<void*>(place_.heap + span.offset), data, span.bytes);
        sender.bytes += span.bytes;
        return true;
    };
    walk(head, body, write, [](const LinkWord&) { return true; });
    ++sender.messages;
    advance(head.sender, head.number, words_);
    return true;
}

bool Landing::is_member(const MessageHead& head) const {
    const bool is_peer = known(head.sender) && head.sender != static_cast<std::uint32_t>(place_.rank);
    return same(head.secret, place_.secret) && is_peer;
}

bool Landing::is_new(const Sender& sender, std::uint64_t number) const {
    // Unsigned distance: right across the end of the numbers, and huge for those that have landed.
    return number - sender.next < kMaxEarly && !sender.early.contains(number);
}

bool Landing::fits(const SpanHead& span) const {
    return span.offset >= sizeof(HeapHeader) && span.offset <= place_.heap_bytes &&
           span.bytes <= place_.heap_bytes - span.offset;
}

bool Landing::fits(const LinkWord& word) const {
    return word.offset % sizeof word.word == 0 && fits(SpanHead{word.offset, sizeof word.word});
}

void Landing::advance(std::uint32_t from, std::uint64_t number, std::vector<LinkWord>& words) {
    Sender& sender = senders_[from];
    if (number != sender.next) {
        sender.early.emplace(number, std::move(words));
        return;
    }
    publish(from, words);
    ++sender.next;
    while (!sender.early.empty()) {
        const auto found = sender.early.find(sender.next);
        if (found == sender.early.end()) return;
        publish(from, found->second);
        sender.early.erase(found);
        ++sender.next;
    }
}

void Landing::publish(std::uint32_t from, const std::vector<LinkWord>& words) {
    if (words.empty()) return;
    landed_ns_[from].store(now_ns(), std::memory_order_relaxed);
    for (const LinkWord& word : words) {
        std::atomic_ref<std::uint64_t> to(*reinterpret_cast<std::uint64_t*>(place_.heap + word.offset));
        to.store(word.word, std::memory_order_release);
    }
    ring(reinterpret_cast<HeapHeader*>(place_.heap)->doorbell);
}

void Landing::describe(int sender, LinkStats& stats) const {
    const Sender& from = senders_[sender];
    stats.bytes_landed = from.bytes;
    stats.messages_landed = from.messages;
    stats.held_back = from.early.size();
    stats.dropped += from.dropped;
}

}  // namespace deep_ll
