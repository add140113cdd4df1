/* Decodes messages that map names to lists of bytes or numbers, in one pass: tf.train.Example, SequenceExample and
 * OneFlow's OFRecord.
 *
 *     message = Features features = 1 (OFRecord: is Features itself), FeatureLists feature_lists = 2
 *     Features = map<string, Feature> feature = 1
 *     FeatureLists = map<string, FeatureList> feature_list = 1
 *     FeatureList = repeated Feature feature = 1
 *     Feature = one of several lists, by the field's number
 *     list = repeated bytes or numbers value = 1, numbers packed or not
 *
 * As in protobuf, unknown fields are skipped, separate parts of a message are merged, the last of several kinds in a
 * Feature counts, and a key may come after its value. The decoder goes from front to back, looks at each byte a
 * bounded number of times and does not recurse: its depth is the schema's. Groups are refused: no such message has
 * them. */
#include "fffs.h"

#include <errno.h>
#include <string.h>

/* Wire types. */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* Ten times seven bits hold 64; higher bits of the tenth byte are dropped, as in protobuf. */
enum { LONGEST = 10 };

/* The values of a kind of list. */
struct kind {
    uint32_t wire;  /* of a number that is not packed; BYTES: no numbers */
    uint32_t width; /* bytes of a decoded number */
};

static const struct kind example_kinds[] = {{BYTES, 0}, {FIXED32, 4}, {VARINT, 8}};
static const struct kind ofrecord_kinds[] = {{BYTES, 0}, {FIXED32, 4}, {FIXED64, 8}, {VARINT, 4}, {VARINT, 8}};

struct walk {
    const uint8_t *data;
    fffs_features *out;
    fffs_feature_entry *entries; /* NULL, like the other tables: only count */
    fffs_feature *features;
    uint64_t *items;
    uint8_t *values;
    const struct kind *kinds;
    uint64_t kind_count;
    const char *why;
    size_t where;
};

struct field {
    uint64_t number;
    uint32_t wire;
    size_t begin, end; /* of the value, without its length */
};

static bool refuse(struct walk *w, const char *why, size_t where)
{
    w->why = why;
    w->where = where;
    return false;
}

static bool varint(struct walk *w, size_t *at, size_t end, uint64_t *value)
{
    size_t begin = *at;

    *value = 0;
    for (unsigned k = 0; k < LONGEST && *at < end; k++) {
        uint8_t byte = w->data[(*at)++];

        *value |= (uint64_t)(byte & 127) << 7 * k;
        if (byte < 128)
            return true;
    }
    return refuse(w, *at - begin == LONGEST ? "a varint has more than ten bytes" : "a varint is truncated", begin);
}

/* Reads the field at *at and moves *at behind it. Returns false at the end of the message, or with why set. */
static bool next_field(struct walk *w, size_t *at, size_t end, struct field *field)
{
    size_t here = *at;
    uint64_t tag, size = 0;

    if (here == end || !varint(w, at, end, &tag))
        return false;
    field->wire = tag & 7;
    field->number = tag >> 3;
    field->begin = *at;
    switch (field->wire) {
    case VARINT:
        if (!varint(w, at, end, &size))
            return false;
        size = *at - field->begin;
        break;
    case FIXED64: size = 8; break;
    case FIXED32: size = 4; break;
    case BYTES:
        if (!varint(w, at, end, &size))
            return false;
        field->begin = *at;
        break;
    default: return refuse(w, "unsupported wire type", here);
    }
    if (size > end - field->begin)
        return refuse(w, "a field extends past the end of its message", here);
    if (field->number == 0 || field->number >= (uint64_t)1 << 29)
        return refuse(w, "invalid field number", here);
    *at = field->end = field->begin + (size_t)size;
    return true;
}

/* ---------------------------------------------------------------- lists */

/* Counts one more value of this width. Returns its place behind the feature's values, or NULL when only counting. */
static uint8_t *next_value(struct walk *w, fffs_feature *feature, uint32_t width)
{
    uint64_t at = feature->first + feature->count++ * width;

    if (at + width > w->out->values_size)
        w->out->values_size = at + width;
    return w->values ? w->values + at : NULL;
}

static bool take_varints(struct walk *w, fffs_feature *feature, size_t at, size_t end, uint32_t width)
{
    while (at < end) {
        uint64_t value;

        if (!varint(w, &at, end, &value))
            return false;
        uint8_t *room = next_value(w, feature, width);
        if (room)
            memcpy(room, &value, width); /* the low bytes, as protobuf truncates long numbers */
    }
    return true;
}

static bool take_list(struct walk *w, fffs_feature *feature, const struct kind *kind, size_t at, size_t end)
{
    struct field field;

    while (next_field(w, &at, end, &field)) {
        if (field.number != 1 || (field.wire != BYTES && field.wire != kind->wire))
            continue;
        if (kind->wire == BYTES) {
            uint64_t item = 2 * (feature->first + feature->count++);

            if (w->items) {
                w->items[item] = field.begin;
                w->items[item + 1] = field.end;
            }
            if (item / 2 >= w->out->items)
                w->out->items = item / 2 + 1;
        } else if (kind->wire == VARINT) {
            if (!take_varints(w, feature, field.begin, field.end, kind->width))
                return false;
        } else {
            if ((field.end - field.begin) % kind->width)
                return refuse(w, "a number is truncated", field.begin);
            for (; field.begin < field.end; field.begin += kind->width) {
                uint8_t *room = next_value(w, feature, kind->width);

                if (room)
                    memcpy(room, w->data + field.begin, kind->width);
            }
        }
    }
    return !w->why;
}

/* ---------------------------------------------------------------- features */

/* Returns a new feature without a kind. Its content will follow the existing one; numbers at a multiple of 8. */
static fffs_feature begin_feature(struct walk *w, uint64_t *items_begin, uint64_t *values_begin)
{
    *items_begin = w->out->items;
    *values_begin = w->out->values_size = (w->out->values_size + 7) & ~(uint64_t)7;
    return (fffs_feature){0, 0, 0};
}

/* Merges a part of a message into the feature. */
static bool take_feature(struct walk *w, fffs_feature *feature, uint64_t items_begin, uint64_t values_begin,
                         size_t at, size_t end)
{
    struct field field;

    while (next_field(w, &at, end, &field)) {
        if (field.wire != BYTES || field.number > w->kind_count)
            continue;
        const struct kind *kind = &w->kinds[field.number - 1];
        if (feature->kind != field.number) /* values of another kind are overwritten */
            *feature = (fffs_feature){field.number, kind->wire == BYTES ? items_begin : values_begin, 0};
        if (!take_list(w, feature, kind, field.begin, field.end))
            return false;
    }
    return !w->why;
}

static void end_feature(struct walk *w, const fffs_feature *feature)
{
    if (w->features)
        w->features[w->out->features] = *feature;
    w->out->features++;
}

/* Reads the features of one part of a FeatureList. */
static bool take_feature_list(struct walk *w, size_t at, size_t end)
{
    struct field field;

    while (next_field(w, &at, end, &field)) {
        uint64_t items_begin, values_begin;

        if (field.number != 1 || field.wire != BYTES)
            continue;
        fffs_feature feature = begin_feature(w, &items_begin, &values_begin);
        if (!take_feature(w, &feature, items_begin, values_begin, field.begin, field.end))
            return false;
        end_feature(w, &feature);
    }
    return !w->why;
}

/* Reads one entry of a map: its value is a Feature, or with lists a FeatureList. */
static bool take_entry(struct walk *w, size_t at, size_t end, bool lists)
{
    fffs_feature_entry entry = {at, at, w->out->features, 0};
    uint64_t items_begin, values_begin;
    fffs_feature feature = begin_feature(w, &items_begin, &values_begin);
    struct field field;

    while (next_field(w, &at, end, &field)) {
        bool good = true;

        if (field.wire != BYTES)
            continue;
        if (field.number == 1) {
            entry.name_begin = field.begin;
            entry.name_end = field.end;
        } else if (field.number == 2 && lists) {
            good = take_feature_list(w, field.begin, field.end);
        } else if (field.number == 2) {
            good = take_feature(w, &feature, items_begin, values_begin, field.begin, field.end);
        }
        if (!good)
            return false;
    }
    if (w->why)
        return false;
    if (!lists)
        end_feature(w, &feature);
    entry.count = w->out->features - entry.first;
    if (w->entries)
        w->entries[w->out->entries] = entry;
    w->out->entries++;
    return true;
}

static bool take_map(struct walk *w, size_t at, size_t end, bool lists)
{
    struct field field;

    while (next_field(w, &at, end, &field))
        if (field.number == 1 && field.wire == BYTES && !take_entry(w, field.begin, field.end, lists))
            return false;
    return !w->why;
}

/* ---------------------------------------------------------------- messages */

static bool take_message(struct walk *w, size_t size, int schema)
{
    const bool lists = schema == FFFS_SCHEMA_FEATURE_LISTS;
    struct field field;
    size_t at = 0;

    if (schema == FFFS_SCHEMA_OFRECORD)
        return take_map(w, 0, size, false);
    while (next_field(w, &at, size, &field)) {
        if (field.wire != BYTES)
            continue;
        if (field.number == 2)
            w->out->sequence = 1;
        if (field.number == (lists ? 2u : 1u) && !take_map(w, field.begin, field.end, lists))
            return false;
    }
    return !w->why;
}

int fffs_features_decode(const uint8_t *data, size_t size, int schema, uint64_t *tables, fffs_features *out,
                         const char **why, uint64_t *where)
{
    struct walk w = {.data = data, .out = out, .kinds = example_kinds, .kind_count = 3};

    if (schema == FFFS_SCHEMA_OFRECORD) {
        w.kinds = ofrecord_kinds;
        w.kind_count = 5;
    }
    if (tables) {
        w.entries = (fffs_feature_entry *)tables;
        w.features = (fffs_feature *)(w.entries + out->entries);
        w.items = (uint64_t *)(w.features + out->features);
        w.values = (uint8_t *)(w.items + 2 * out->items);
    }
    *out = (fffs_features){0};
    if (take_message(&w, size, schema))
        return 0;
    *why = w.why;
    *where = w.where;
    return -EINVAL;
}

size_t fffs_varints_encode(const int64_t *values, size_t count, uint8_t *data)
{
    size_t size = 0;

    for (size_t i = 0; i < count; i++) {
        uint64_t value = (uint64_t)values[i];

        for (; value > 127; value >>= 7)
            data[size++] = (uint8_t)(value | 128);
        data[size++] = (uint8_t)value;
    }
    return size;
}
