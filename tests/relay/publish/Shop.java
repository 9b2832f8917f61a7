import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;

public class Shop {
@PAGE@

    public static void main(String[] args) throws SQLException {
        var connection = DriverManager.getConnection(args[0].replace("postgres://postgres@", "jdbc:postgresql://"), "postgres", "");
        placeOrder(connection, 7);
        try {
            placeOrder(connection, 7);
        } catch (SQLException refused) {
            if (refused.getSQLState().equals("23505")) return;
            throw refused;
        }
        throw new IllegalStateException("the second order was taken");
    }
}
