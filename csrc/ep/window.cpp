// window.cpp: how the heap is cut up, and how large it must be.
#include "ep/window.hpp"

#include <algorithm>

namespace deep_ll {
namespace {

// Counts get a 128th of the heap: enough for any experts whose rows fit into the rest (bytes_for sees to
// small shapes).
constexpr std::uint64_t kCountsShare = 128;

std::uint64_t fair_stride(std::uint64_t bytes, std::uint64_t ranks) {
    const std::uint64_t fair = bytes / kCountsShare / (2 * ranks) / kLine * kLine;
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
    const std::uint64_t fixed = sizeof(HeapHeader) + ranks * sizeof(Desk) + 4 * slot + 4 * kLine;
    const std::uint64_t stride = round_up(static_cast<std::uint64_t>(shape.num_experts) * 2, kLine);
    // Either the 128th is enough for the counts, or the heap is as large as makes it so.
    const std::uint64_t with_share = fixed + fixed / (kCountsShare - 1) + kLine;
    const std::uint64_t for_counts = stride == kLine ? 0 : stride * 2 * ranks * kCountsShare;
    return round_up(std::max(with_share, for_counts), kPage);
}

}  // namespace deep_ll
