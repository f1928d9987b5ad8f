// window.cpp: how the heap is cut up, and how large it must be.
#include "ep/window.hpp"

#include <algorithm>

namespace deep_ll {
namespace {

// Counts and grants get a 128th of the heap: enough for any experts whose rows fit into the rest (bytes_for
// sees to small shapes).
constexpr std::uint64_t kCountsShare = 128;

// Of both, in strides of counts: two slots of ranks; two of grants, which are twice as wide.
std::uint64_t num_strides(std::uint64_t ranks) {
    return 2 * ranks + 4;
}

std::uint64_t view_stride_of(std::uint64_t ranks) {
    return round_up(ranks, 16);
}

std::uint64_t fair_stride(std::uint64_t bytes, std::uint64_t ranks) {
    const std::uint64_t fair = bytes / kCountsShare / num_strides(ranks) / kLine * kLine;
    return std::clamp(fair, kLine, std::uint64_t{kMaxExperts} * 2);
}

}  // namespace

Window Window::carve(std::uint64_t bytes, int num_ranks) {
    const auto ranks = static_cast<std::uint64_t>(num_ranks);
    HeapPlan plan;
    Window window{};
    window.counts_stride = fair_stride(bytes, ranks);
    window.desks = plan.take(ranks * sizeof(Desk), 1, kLine);
    window.counts = plan.take(ranks * window.counts_stride, 2, kLine);
    window.view_stride = view_stride_of(ranks);
    window.notes = plan.take(ranks * sizeof(Note), 1, kLine);
    window.views = plan.take(ranks * window.view_stride, 2, kLine);
    window.grants = plan.take(window.counts_stride * 2, 2, kLine);
    // Nobody behind a GPU's network can be left out: there are no notes, views and grants then. These are 16
    // bytes a rank, at least 32 (64 from 17 ranks on), and at least 256.
    static_assert(sizeof(Mail) <= kLine);
    window.mail = {window.notes.offset, ranks * sizeof(Mail), 1};
    const std::uint64_t used = round_up(plan.used(), kLine);
    const std::uint64_t slot = bytes > used ? (bytes - used) / 4 / kLine * kLine : 0;
    window.recv = plan.take(slot, 2, kLine);
    window.combine = plan.take(slot, 2, kLine);
    window.bytes = bytes;
    return window;
}

std::uint64_t Window::bytes_for(const Shape& shape) {
    std::uint64_t slot = round_up(shape.num_rows() * shape.bf16_bytes(), kLine);
    for (const Format format : {Format::bf16, Format::fp8, Format::fp8_ue8m0}) {
        if (format != Format::bf16 && shape.hidden % kGroup != 0) continue;
        Shape with = shape;
        with.format = format;
        slot = std::max(slot, RecvLayout::carve(with).bytes);
    }
    const auto ranks = static_cast<std::uint64_t>(shape.num_ranks);
    const std::uint64_t of_ranks = ranks * (sizeof(Desk) + sizeof(Note) + 2 * view_stride_of(ranks));
    const std::uint64_t fixed = sizeof(HeapHeader) + of_ranks + 4 * slot + 8 * kLine;
    const std::uint64_t stride = round_up(static_cast<std::uint64_t>(shape.num_experts) * 2, kLine);
    // Either the 128th is enough for the counts, or the heap is as large as makes it so.
    const std::uint64_t share = std::max(fixed / (kCountsShare - 1) + kLine, num_strides(ranks) * kLine);
    const std::uint64_t with_share = fixed + share;
    const std::uint64_t for_counts = stride == kLine ? 0 : stride * num_strides(ranks) * kCountsShare;
    return round_up(std::max(with_share, for_counts), kPage);
}

std::uint64_t Window::slot_bytes_with_network(const Shape& shape) {
    const std::uint64_t returned = shape.num_choices() * shape.bf16_bytes();
    return 2 * round_up(std::max(returned, OutgoingLayout::carve(shape).bytes), kLine);
}

}  // namespace deep_ll
