// liar.cpp: what peers write that is not so.
#include <cstring>

#include "ep/window.hpp"
#include "lie.hpp"

namespace lies {
namespace {

// The first eight are of any exchange.
enum Kind { kRowBytes = 8, kGrantWhilePlacing, kGrant, kView, kNote, kKinds };

int num_kinds(const Way& way) {
    return way.shrinks ? kKinds : way.pulled || way.logfmt ? kRowBytes + 1 : kRowBytes;
}

void tell_count(Scene& scene) {
    scene.lie.of = "a count";
    const Shape& shape = scene.victim().shape;
    const auto most = static_cast<std::uint64_t>(shape.max_tokens);
    const auto expert = static_cast<std::uint64_t>(scene.dice.below(shape.num_experts));
    const std::uint64_t counts = scene.window.counts_of(scene.epoch(), scene.lie.source);
    auto& word = scene.at<std::uint16_t>(counts + 2 * expert);
    word = static_cast<std::uint16_t>(scene.dice.spoil(word, most));
    scene.lie.possible = word <= most;
}

void tell_signal(Scene& scene) {
    Lie& lie = scene.lie;
    lie.of = "a signal";
    // The one that is waited for next, or any.
    const int next = lie.moment <= Step::place ? 0 : lie.moment <= Step::rows ? 1 : 2 + (scene.now + 1) % 2;
    const int which = scene.dice.below(3) == 0 ? scene.dice.below(scene.way.shrinks ? 7 : 5) : next;
    auto& word = scene.at<Signal>(scene.window.desk(lie.source) + 8 * static_cast<std::uint64_t>(which)).word;
    const std::uint64_t lied = scene.dice.below(2) == 0
                                   ? scene.dice.next()
                                   : word + (scene.dice.next() % 5 + 1) * (std::uint64_t{1} << 32);
    // A step further is what the next round's word will be.
    lie.possible = epoch_of(lied) - static_cast<std::uint32_t>(scene.now) <= 2;
    word = lied;
}

// One that has come, if any has.
int some_row(Scene& scene) {
    const Shape& shape = scene.victim().shape;
    const int local = scene.dice.below(shape.num_local());
    const auto& rows = scene.round().arrivals[static_cast<std::size_t>(shape.first_local() + local)];
    const int num_rows = rows.empty() ? static_cast<int>(shape.max_rows()) : static_cast<int>(rows.size());
    return static_cast<int>(shape.row_index(local, static_cast<std::uint64_t>(scene.dice.below(num_rows))));
}

void tell_label(Scene& scene) {
    Lie& lie = scene.lie;
    lie.of = "a label";
    const Shape& shape = scene.victim().shape;
    const auto row = static_cast<std::uint64_t>(some_row(scene));
    auto& origin = scene.at<Origin>(scene.window.recv.slot(scene.slot()) + RecvLayout::carve(shape).labels +
                                    row * Label::bytes(shape) + Label::origin_offset(shape));
    const Origin was = origin;
    const std::uint64_t lied = scene.dice.spoil(was.word(), 0);
    std::memcpy(static_cast<void*>(&origin), &lied, sizeof lied);
    lie.source = was.source;
    // Another token of the same source in the same place: nobody can know.
    const bool same_place = origin.source == was.source || lie.moment > Step::unpack;
    lie.possible = origin.is_inside(shape) && origin.dispatch == was.dispatch && same_place;
    lie.possible = lie.possible || lie.source == lie.victim;
}

void tell_greeting(Scene& scene) {
    scene.lie.of = "a greeting";
    const auto place = static_cast<std::uint64_t>((scene.now + 1) % 2 * 6 + scene.dice.below(6));
    const std::uint64_t desk = scene.window.desk(scene.lie.source);
    scene.at<std::uint32_t>(desk + offsetof(Desk, greeting) + 4 * place) =
        static_cast<std::uint32_t>(scene.dice.spoil(0, 0xffffffff));
}

// How sleepers are woken, and what is written for the caller alone.
void tell_what_is_not_believed(Scene& scene) {
    scene.lie.of = "what nobody believes";
    if (scene.dice.below(2) == 0) {
        scene.at<std::uint64_t>(offsetof(HeapHeader, doorbell) +
                                8 * static_cast<std::uint64_t>(scene.dice.below(2))) = scene.dice.next();
        scene.at<std::uint64_t>(offsetof(HeapHeader, doorbell) + offsetof(Doorbell, arrived)) =
            scene.dice.next();
        return;
    }
    if (scene.lie.moment <= Step::unpack) return;
    const Shape& shape = scene.victim().shape;
    const auto row = static_cast<std::uint64_t>(scene.dice.below(static_cast<int>(shape.num_rows())));
    scene.at<std::int32_t>(scene.window.recv.slot(scene.slot()) + RecvLayout::carve(shape).src_info +
                           4 * row) = static_cast<std::int32_t>(scene.dice.next());
}

// Of a row that comes back. Nobody can know; but sums have to stand anything.
void tell_row_bytes(Scene& scene) {
    scene.lie.of = "the bytes of a row";
    scene.lie.possible = true;
    const auto words = scene.window.combine.slot_bytes / 8;
    for (int i = 0; i < 32; ++i)
        scene.at<std::uint64_t>(scene.window.combine.slot(scene.slot()) + scene.dice.next() % words * 8) =
            scene.dice.next();
}

void tell_view(Scene& scene) {
    scene.lie.of = "a view";
    scene.lie.possible = true;
    const std::uint64_t view = scene.window.view_of(scene.epoch(), scene.lie.source);
    const auto bytes = static_cast<int>(scene.window.view_stride);
    scene.at<std::uint8_t>(view + static_cast<std::uint64_t>(scene.dice.below(bytes))) =
        static_cast<std::uint8_t>(scene.dice.next());
}

void tell_note(Scene& scene) {
    scene.lie.of = "a note";
    scene.lie.possible = true;
    scene.at<Note>(scene.window.notes.offset + static_cast<std::uint64_t>(scene.lie.source) * sizeof(Note))
        .evicted.word = scene.dice.next();
}

}  // namespace

// Mostly at the moment when it is believed, else at any.
void choose_lie(Scene& scene) {
    static constexpr Step kMoments[] = {Step::place, Step::place,   Step::unpack,
                                        Step::push,  Step::outputs, Step::rows};
    Dice& dice = scene.dice;
    Lie& lie = scene.lie;
    scene.kind = dice.below(num_kinds(scene.way));
    lie.victim = dice.below(scene.size());
    lie.source = (lie.victim + 1 + dice.below(scene.size() - 1)) % scene.size();
    lie.moment = static_cast<Step>(dice.below(kSteps));
    if (lies_while_placing(scene)) lie.moment = Step::place;
    if (lies_while_placing(scene) || dice.below(4) == 0) return;
    if (scene.kind == kRowBytes) lie.moment = Step::gather;
    if (scene.kind == kGrant) lie.moment = dice.below(2) == 0 ? Step::outputs : Step::gather;
    if (scene.kind == kView) lie.moment = Step::place;
    if (scene.kind >= kRowBytes) return;
    const bool of_counts = scene.kind < 2 || scene.kind == 6;
    const bool of_labels = scene.kind == 4 || scene.kind == 5;
    lie.moment = kMoments[of_counts ? 0 : of_labels ? 2 + dice.below(2) : 1 + dice.below(5)];
}

bool lies_while_placing(const Scene& scene) {
    return scene.kind == kGrantWhilePlacing;
}

void tell_grant(Scene& scene) {
    Lie& lie = scene.lie;
    lie.of = "a grant";
    const Shape& shape = scene.victim().shape;
    const Shape& owner = scene.rank(lie.source).shape;
    const int expert = owner.first_local() + scene.dice.below(owner.num_local());
    const auto most = static_cast<std::uint64_t>(shape.rank) * static_cast<std::uint64_t>(shape.max_tokens);
    auto& first = scene.at<std::uint32_t>(scene.window.grant(scene.epoch(), expert));
    const bool early = lie.moment <= Step::place;
    first = static_cast<std::uint32_t>(scene.dice.spoil(first, early ? most + 1 : shape.max_rows()));
    // Before the rows are sent all of them are compared. Later only those of rows that will be read, and with
    // the number of rows alone; once more while they are read, then nobody is told.
    lie.possible = early ? first <= most : first < shape.max_rows() || lie.moment >= Step::gather;
}

void tell(Scene& scene) {
    switch (scene.kind) {
        case 0:
        case 1:
            return tell_count(scene);
        case 2:
        case 3:
            return tell_signal(scene);
        case 4:
        case 5:
            return tell_label(scene);
        case 6:
            return tell_greeting(scene);
        case 7:
            return tell_what_is_not_believed(scene);
        case kRowBytes:
            return tell_row_bytes(scene);
        case kGrantWhilePlacing:
            return;
        case kGrant:
            return tell_grant(scene);
        case kView:
            return tell_view(scene);
        default:
            return tell_note(scene);
    }
}

}  // namespace lies
