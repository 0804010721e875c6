/* All kinds of derived types in views and in memory, through all kinds of calls. Each round every rank writes its part
 * of a space of `cells` integers and then reads the part of its neighbour, whose content it can compute. */
#include "check.h"

#define CELLS 5760 /* divides by 1..6, 8, 9 and 2x2, 2x3 grids */

/* The cells of a rank under a pattern, ascending; the same rule as the type made below, by plain arithmetic. */
static int owner(int pattern, int cell)
{
    int rows = 48, columns = 120, r = cell / columns, c = cell % columns;
    (void)rows;
    switch (pattern) {
    case 0: /* blocks of 5 in turn */
        return cell / 5 % ranks;
    case 1: /* bands of columns */
        return c / (columns / ranks + (columns % ranks != 0));
    case 2: /* bands of rows */
        return r / (rows / ranks + (rows % ranks != 0));
    case 3: /* cyclic rows in threes */
        return r / 3 % ranks;
    case 4: /* irregular */
        return (int)((uint32_t)(cell / 7) * 2654435761u >> 20) % ranks;
    default: /* single cells in turn */
        return cell % ranks;
    }
}

#define PATTERNS 8

static MPI_Datatype indexed_of(int pattern, int who, int kind)
{
    int *lengths = malloc(CELLS * sizeof(int)), *places = malloc(CELLS * sizeof(int)), n = 0;
    MPI_Aint *bytes = malloc(CELLS * sizeof(MPI_Aint));
    MPI_Datatype *types = malloc(CELLS * sizeof(MPI_Datatype)), made, resized;
    for (int cell = 0; cell < CELLS; cell++) {
        if (owner(pattern, cell) != who)
            continue;
        if (n && kind != 2 && places[n - 1] + lengths[n - 1] == cell) {
            lengths[n - 1]++;
            continue;
        }
        places[n] = cell;
        lengths[n] = 1;
        bytes[n] = (MPI_Aint)cell * 4;
        types[n] = MPI_INT;
        n++;
    }
    if (kind == 0)
        MPI_Type_indexed(n, lengths, places, MPI_INT, &made);
    else if (kind == 1)
        MPI_Type_create_hindexed(n, lengths, bytes, MPI_INT, &made);
    else if (kind == 2)
        MPI_Type_create_indexed_block(n, 1, places, MPI_INT, &made);
    else
        MPI_Type_create_struct(n, lengths, bytes, types, &made);
    MPI_Type_create_resized(made, 0, CELLS * 4, &resized);
    MPI_Type_free(&made);
    MPI_Type_commit(&resized);
    free(lengths), free(places), free(bytes), free(types);
    return resized;
}

static MPI_Datatype type_of(int pattern, int who)
{
    MPI_Datatype made = MPI_DATATYPE_NULL, other;
    int sizes[2] = {48, 120};
    switch (pattern) {
    case 0: {
        MPI_Datatype vector, moved;
        MPI_Type_vector(CELLS / 5 / ranks, 5, 5 * ranks, MPI_INT, &vector);
        MPI_Aint at = (MPI_Aint)who * 20;
        int one = 1;
        MPI_Type_create_hindexed(1, &one, &at, vector, &moved);
        MPI_Type_create_resized(moved, 0, CELLS * 4, &made);
        MPI_Type_free(&vector), MPI_Type_free(&moved);
        break;
    }
    case 1: {
        int width = 120 / ranks + (120 % ranks != 0), subsizes[2] = {48, width}, starts[2] = {0, who * width};
        if (starts[1] + width > 120)
            subsizes[1] = 120 - starts[1];
        if (chance(2)) {
            MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_INT, &made);
        } else {
            int a[2] = {120, 48}, b[2] = {subsizes[1], 48}, c[2] = {starts[1], 0};
            MPI_Type_create_subarray(2, a, b, c, MPI_ORDER_FORTRAN, MPI_INT, &made);
        }
        break;
    }
    case 2: {
        int distribs[2] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_NONE}, psizes[2] = {ranks, 1};
        int dargs[2] = {MPI_DISTRIBUTE_DFLT_DARG, MPI_DISTRIBUTE_DFLT_DARG};
        MPI_Type_create_darray(ranks, who, 2, sizes, distribs, dargs, psizes, MPI_ORDER_C, MPI_INT, &made);
        break;
    }
    case 3: {
        int distribs[2] = {MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_NONE}, psizes[2] = {ranks, 1}, dargs[2] = {3, 0};
        dargs[1] = MPI_DISTRIBUTE_DFLT_DARG;
        MPI_Type_create_darray(ranks, who, 2, sizes, distribs, dargs, psizes, MPI_ORDER_C, MPI_INT, &made);
        break;
    }
    default:
        return indexed_of(pattern, who, pattern % 4);
    }
    MPI_Type_dup(made, &other);
    MPI_Type_free(&made);
    MPI_Type_commit(&other);
    return other;
}

static int value(int round, int cell)
{
    return (int)((uint32_t)round * 1000003u + (uint32_t)cell * 7919u);
}

/* Memory with room for n integers, and a type that picks them: contiguous, with gaps, or backwards. */
static MPI_Datatype memory_type(int kind, int n, int *stride)
{
    MPI_Datatype type;
    *stride = kind == 0 ? 1 : 3;
    if (kind == 0) {
        MPI_Type_contiguous(n, MPI_INT, &type);
    } else if (kind == 1) {
        MPI_Type_create_hvector(n, 1, 12, MPI_INT, &type);
    } else {
        int *places = malloc((size_t)n * sizeof(int));
        for (int i = 0; i < n; i++)
            places[i] = 3 * (n - 1 - i);
        MPI_Type_create_indexed_block(n, 1, places, MPI_INT, &type);
        free(places);
    }
    MPI_Type_commit(&type);
    return type;
}

static int *slot(int *memory, int kind, int n, int i)
{
    return kind == 0 ? &memory[i] : kind == 1 ? &memory[3 * i] : &memory[3 * (n - 1 - i)];
}

static void finish_request(MPI_Request *request, MPI_Status *status)
{
    OK(MPI_Wait(request, status));
}

static void write_cells(MPI_File file, int how, int *memory, int count, MPI_Datatype type, MPI_Status *s)
{
    MPI_Request r;
    switch (how) {
    case 0:
        OK(MPI_File_write_at(file, 0, memory, count, type, s));
        break;
    case 1:
        OK(MPI_File_write_at_all(file, 0, memory, count, type, s));
        break;
    case 2:
        OK(MPI_File_write(file, memory, count, type, s));
        break;
    case 3:
        OK(MPI_File_write_all(file, memory, count, type, s));
        break;
    case 4:
        OK(MPI_File_iwrite_at(file, 0, memory, count, type, &r));
        finish_request(&r, s);
        break;
    case 5:
        OK(MPI_File_iwrite(file, memory, count, type, &r));
        finish_request(&r, s);
        break;
    case 6:
        OK(MPI_File_write_all_begin(file, memory, count, type));
        OK(MPI_File_write_all_end(file, memory, s));
        break;
    default:
        OK(MPI_File_write_at_all_begin(file, 0, memory, count, type));
        OK(MPI_File_write_at_all_end(file, memory, s));
    }
}

static void read_cells(MPI_File file, int how, int *memory, int count, MPI_Datatype type, MPI_Status *s)
{
    MPI_Request r;
    switch (how) {
    case 0:
        OK(MPI_File_read_at(file, 0, memory, count, type, s));
        break;
    case 1:
        OK(MPI_File_read_at_all(file, 0, memory, count, type, s));
        break;
    case 2:
        OK(MPI_File_read(file, memory, count, type, s));
        break;
    case 3:
        OK(MPI_File_read_all(file, memory, count, type, s));
        break;
    case 4:
        OK(MPI_File_iread_at(file, 0, memory, count, type, &r));
        finish_request(&r, s);
        break;
    case 5:
        OK(MPI_File_iread(file, memory, count, type, &r));
        finish_request(&r, s);
        break;
    case 6:
        OK(MPI_File_read_all_begin(file, memory, count, type));
        OK(MPI_File_read_all_end(file, memory, s));
        break;
    default:
        OK(MPI_File_read_at_all_begin(file, 0, memory, count, type));
        OK(MPI_File_read_at_all_end(file, memory, s));
    }
}

static void round_trip(MPI_File file, int round)
{
    int pattern = round % PATTERNS, kind = chance(3), write_how = chance(8), read_how = chance(8), stride;
    MPI_Offset base = (MPI_Offset)chance(5) * CELLS * 4 + chance(3) * 4;
    int neighbour = (rank + 1) % ranks, whose[2] = {rank, neighbour};
    for (int part = 0; part < 2; part++) {
        MPI_Datatype filetype = type_of(pattern, whose[part]);
        int n = 0, i = 0, elements = 0, *memory;
        for (int cell = 0; cell < CELLS; cell++)
            n += owner(pattern, cell) == whose[part];
        MPI_Datatype type = memory_type(kind, n ? n : 1, &stride);
        memory = malloc((size_t)(n + 1) * 12);
        memset(memory, 0x5a, (size_t)(n + 1) * 12);
        OK(MPI_File_set_view(file, base, MPI_INT, filetype, "native", MPI_INFO_NULL));
        MPI_Status status;
        int expected = 0;
        if (part == 0) {
            for (int cell = 0; cell < CELLS; cell++)
                if (owner(pattern, cell) == rank)
                    *slot(memory, kind, n, i++) = value(round, cell);
            write_cells(file, write_how, memory, n ? 1 : 0, type, &status);
        } else {
            read_cells(file, read_how, memory, n ? 1 : 0, type, &status);
            int wrong = 0;
            for (int cell = 0; cell < CELLS; cell++)
                if (owner(pattern, cell) == neighbour)
                    wrong += *slot(memory, kind, n, i++) != value(round, cell);
            if (wrong)
                fprintf(stderr, "round %d pattern %d memory %d write %d read %d: %d of %d wrong\n", round, pattern, kind,
                        write_how, read_how, wrong, n);
            CHECK(wrong == 0);
            for (int j = 0; kind && j < 3 * n; j++)
                expected += j % 3 && memory[j] != 0x5a5a5a5a;
            CHECK(expected == 0);
        }
        MPI_Get_elements(&status, MPI_INT, &elements);
        CHECK(elements == n);
        MPI_Type_free(&type);
        MPI_Type_free(&filetype);
        free(memory);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    random_state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    MPI_File file;
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    for (int round = 0; round < 3 * PATTERNS; round++) {
        round_trip(file, round);
        if (chance(4) == 0)
            OK(MPI_File_sync(file));
    }
    OK(MPI_File_close(&file));
    return finish();
}
