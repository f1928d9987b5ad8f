// message.hpp: what travels over a link: spans of bytes and words, many in one message. Host only.
//
//   MessageHead | SpanHead bytes | SpanHead bytes | ... | LinkWord | LinkWord | ...
//
// Nothing is aligned, so nothing is padded.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "symm/link.hpp"

namespace deep_ll {

// What members of a group know and others do not. In every message, since a connection says nothing about who
// is at its other end: then no state of connections has to be right.
using Secret = std::array<std::uint8_t, 32>;

struct MessageHead {
    Secret secret;
    std::uint64_t number;  // of messages from this sender to this receiver before
    std::uint32_t sender;
    std::uint16_t num_spans;
    std::uint16_t num_words;
};
static_assert(sizeof(MessageHead) == 48);

struct SpanHead {
    std::uint64_t offset;
    std::uint64_t bytes;
};

// The largest message. More would not fit into one fragment of UCX's TCP, and sending it would cost more than
// twice as much a byte.
constexpr std::uint64_t kMessageBytes = 60 << 10;

// So many may be on their way to a peer; then callers wait for one to leave.
constexpr std::size_t kMessagesPerPeer = 16;

// Fills a buffer of kMessageBytes.
class MessageWriter {
   public:
    MessageWriter(std::uint8_t* buffer, const MessageHead& head);

    // As much of the span as fits, which may be nothing; how much it was. No spans after words.
    std::uint64_t add(std::uint64_t offset, const void* from, std::uint64_t bytes);
    // False: it does not fit.
    bool add(const LinkWord& word);
    // Completes the head; how long the message is.
    std::uint64_t finish();

   private:
    std::uint64_t room() const { return kMessageBytes - used_; }
    void append(const void* from, std::uint64_t bytes);

    std::uint8_t* buffer_;
    std::uint64_t used_ = sizeof(MessageHead);
    MessageHead head_;
};

// A part of a message, from its front to its back.
class Cursor {
   public:
    Cursor(const std::uint8_t* at, std::uint64_t bytes) : at_(at), left_(bytes) {}

    template <class T>
    bool take(T& value) {
        const std::uint8_t* from = take_bytes(sizeof(T));
        if (from != nullptr) std::memcpy(&value, from, sizeof(T));
        return from != nullptr;
    }
    // Null: there are not so many.
    const std::uint8_t* take_bytes(std::uint64_t bytes) {
        if (bytes > left_) return nullptr;
        const std::uint8_t* from = at_;
        at_ += bytes;
        left_ -= bytes;
        return from;
    }
    bool at_end() const { return left_ == 0; }

   private:
    const std::uint8_t* at_;
    std::uint64_t left_;
};

// Calls on_span(span, data) and on_word(word) for what follows the head, until one returns false. False: one
// did, or the message is not as long as it says.
template <class OnSpan, class OnWord>
bool walk(const MessageHead& head, Cursor body, OnSpan on_span, OnWord on_word) {
    for (int i = 0; i < head.num_spans; ++i) {
        SpanHead span;
        if (!body.take(span)) return false;
        const std::uint8_t* data = body.take_bytes(span.bytes);
        if (data == nullptr || !on_span(span, data)) return false;
    }
    for (int i = 0; i < head.num_words; ++i) {
        LinkWord word;
        if (!body.take(word) || !on_word(word)) return false;
    }
    return body.at_end();
}

}  // namespace deep_ll
