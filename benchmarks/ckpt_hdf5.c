/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer of `tutti bench ckpt`: the same tensors in one file of parallel HDF5, as a careful
 * program would write it: one dataset for each tensor, of which every rank writes its row,
 * collectively; no fill values, aligned to pages, metadata written collectively. Durable: the file
 * synced, renamed, its directory synced. Nothing is checksummed. Prints seconds: save, load from
 * disk, load from cache.
 *
 * usage: mpirun -np R ckpt_hdf5 DIR MIB TENSORS   (built by ckpt.sh with h5pcc)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <hdf5.h>

enum { PATH_CAP = 512 };

typedef struct peer {
    const char *dir;
    int rank, size, tensors;
    hsize_t elems; /* of a row */
    float *data, *copy;
} peer;

static void die(const char *what)
{
    perror(what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static hid_t ok(hid_t id, const char *what)
{
    if (id < 0)
        die(what);
    return id;
}

static hid_t parallel_access(void)
{
    hid_t access = ok(H5Pcreate(H5P_FILE_ACCESS), "access");
    ok(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL), "mpio");
    ok(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_LATEST), "bounds");
    ok(H5Pset_alignment(access, 65536, 4096), "alignment");
    ok(H5Pset_coll_metadata_write(access, true), "metadata");
    ok(H5Pset_all_coll_metadata_ops(access, true), "metadata");
    return access;
}

static void write_tensor(const peer *p, hid_t file, hid_t create, hid_t transfer, int i)
{
    hsize_t dims[2] = {(hsize_t)p->size, p->elems}, at[2] = {(hsize_t)p->rank, 0},
            row[2] = {1, p->elems};
    char name[32];
    snprintf(name, sizeof name, "t%06d", i);
    hid_t space = ok(H5Screate_simple(2, dims, NULL), "space");
    hid_t memory = ok(H5Screate_simple(2, row, NULL), "space");
    hid_t set =
        ok(H5Dcreate2(file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, create, H5P_DEFAULT), name);
    ok(H5Sselect_hyperslab(space, H5S_SELECT_SET, at, NULL, row, NULL), "row");
    ok(H5Dwrite(set, H5T_NATIVE_FLOAT, memory, space, transfer, p->data + (hsize_t)i * p->elems),
       name);
    H5Dclose(set);
    H5Sclose(memory);
    H5Sclose(space);
}

static void read_tensor(const peer *p, hid_t file, hid_t transfer, int i)
{
    hsize_t at[2] = {(hsize_t)p->rank, 0}, row[2] = {1, p->elems};
    char name[32];
    snprintf(name, sizeof name, "t%06d", i);
    hid_t set = ok(H5Dopen2(file, name, H5P_DEFAULT), name);
    hid_t space = ok(H5Dget_space(set), "space");
    hid_t memory = ok(H5Screate_simple(2, row, NULL), "space");
    ok(H5Sselect_hyperslab(space, H5S_SELECT_SET, at, NULL, row, NULL), "row");
    ok(H5Dread(set, H5T_NATIVE_FLOAT, memory, space, transfer, p->copy + (hsize_t)i * p->elems),
       name);
    H5Sclose(memory);
    H5Sclose(space);
    H5Dclose(set);
}

static void sync_path(const char *path)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fsync(fd) != 0)
        die(path);
    close(fd);
}

static hid_t collective_transfer(void)
{
    hid_t transfer = ok(H5Pcreate(H5P_DATASET_XFER), "transfer");
    ok(H5Pset_dxpl_mpio(transfer, H5FD_MPIO_COLLECTIVE), "collective");
    return transfer;
}

static double save(const peer *p)
{
    char temp[PATH_CAP], final[PATH_CAP];
    snprintf(temp, sizeof temp, "%s/peer.tmp", p->dir);
    snprintf(final, sizeof final, "%s/peer.h5", p->dir);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    hid_t access = parallel_access(), transfer = collective_transfer();
    hid_t create = ok(H5Pcreate(H5P_DATASET_CREATE), "create");
    ok(H5Pset_fill_time(create, H5D_FILL_TIME_NEVER), "fill");
    ok(H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY), "alloc");
    hid_t file = ok(H5Fcreate(temp, H5F_ACC_TRUNC, H5P_DEFAULT, access), temp);
    for (int i = 0; i < p->tensors; i++)
        write_tensor(p, file, create, transfer, i);
    ok(H5Fclose(file), "close");
    H5Pclose(create);
    H5Pclose(transfer);
    H5Pclose(access);
    if (p->rank == 0) {
        sync_path(temp);
        if (rename(temp, final) != 0)
            die(final);
        sync_path(p->dir);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Wtime() - start;
}

static double load(const peer *p, bool cold)
{
    char path[PATH_CAP];
    snprintf(path, sizeof path, "%s/peer.h5", p->dir);
    if (p->rank == 0 && cold) {
        int fd = open(path, O_RDONLY);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    hid_t access = parallel_access(), transfer = collective_transfer();
    hid_t file = ok(H5Fopen(path, H5F_ACC_RDONLY, access), path);
    for (int i = 0; i < p->tensors; i++)
        read_tensor(p, file, transfer, i);
    ok(H5Fclose(file), "close");
    H5Pclose(transfer);
    H5Pclose(access);
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Wtime() - start;
}

int main(int argc, char **argv)
{
    peer p = {0};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.size);
    if (argc != 4 || atoi(argv[2]) < 1 || atoi(argv[3]) < 1)
        die("usage: ckpt_hdf5 DIR MIB TENSORS");
    p.dir = argv[1];
    p.tensors = atoi(argv[3]);
    p.elems =
        ((hsize_t)atoi(argv[2]) << 20) / (hsize_t)p.size / (hsize_t)p.tensors / 4096 * 4096 / 4;
    size_t bytes = p.elems * (size_t)p.tensors * sizeof(float);
    p.data = malloc(bytes);
    p.copy = malloc(bytes);
    if (p.data == NULL || p.copy == NULL)
        die("malloc");
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        p.data[i] = (float)(i * 2654435761u % 16777213u) + (float)p.rank;
    memset(p.copy, 1, bytes);
    save(&p); /* as tutti bench ckpt, which measures from the second on */
    double saved = save(&p), cold = load(&p, true), cached = load(&p, false);
    if (memcmp(p.data, p.copy, bytes) != 0)
        die("what was loaded differs");
    if (p.rank == 0)
        printf("%.6f %.6f %.6f\n", saved, cold, cached);
    free(p.data);
    free(p.copy);
    MPI_Finalize();
    return 0;
}
