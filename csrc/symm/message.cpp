// message.cpp: filling a message.
#include "symm/message.hpp"

#include <algorithm>
#include <limits>

namespace deep_ll {

MessageWriter::MessageWriter(std::uint8_t* buffer, const MessageHead& head) : buffer_(buffer), head_(head) {
    head_.num_spans = 0;
    head_.num_words = 0;
}

std::uint64_t MessageWriter::add(std::uint64_t offset, const void* from, std::uint64_t bytes) {
    if (room() <= sizeof(SpanHead) || head_.num_spans == std::numeric_limits<std::uint16_t>::max()) return 0;
    const SpanHead span{offset, std::min(bytes, room() - sizeof(SpanHead))};
    append(&span, sizeof span);
    append(from, span.bytes);
    ++head_.num_spans;
    return span.bytes;
}

bool MessageWriter::add(const LinkWord& word) {
    if (room() < sizeof word) return false;
    append(&word, sizeof word);
    ++head_.num_words;
    return true;
}

std::uint64_t MessageWriter::finish() {
    std::memcpy(buffer_, &head_, sizeof head_);
    return used_;
}

void MessageWriter::append(const void* from, std::uint64_t bytes) {
    std::memcpy(buffer_ + used_, from, bytes);
    used_ += bytes;
}

}  // namespace deep_ll
