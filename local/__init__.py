"""The whole stack on a laptop, without Docker: MongoDB, AWS, an offline model and Lambda itself."""
